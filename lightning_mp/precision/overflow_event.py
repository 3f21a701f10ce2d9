"""One optimizer step that the gradient scaler skipped."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class OverflowEvent:
    """One optimizer step that the gradient scaler skipped, and where the overflow began.

    Args:
        step: `Trainer.global_step` when the step was tried; it counts skipped steps too.
        scale: Loss scale of that step.
        origin: `"forward"` if the loss itself was not finite, else `"backward"`: the gradients overflowed.
        layers: Names of the modules whose values were not finite, the one where it began first; empty where it
            could not be told.
        optimizer: Position of the optimizer in the Trainer's list.

    Example:
        >>> OverflowEvent(step=3, scale=65536.0, origin="backward", layers=("top.2",)).to_dict()["origin"]
        'backward'
    """

    step: int
    scale: float
    origin: Literal["forward", "backward"]
    layers: tuple[str, ...] = ()
    optimizer: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The event in plain Python, as a checkpoint holds it."""
        return {**asdict(self), "layers": list(self.layers)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> OverflowEvent:
        """The event that `to_dict` wrote.

        Args:
            values: What `to_dict` gave.

        Returns:
            An equal event.
        """
        return cls(**{**values, "layers": tuple(values["layers"])})
