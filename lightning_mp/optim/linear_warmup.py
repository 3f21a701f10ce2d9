"""The learning rate of a step while it is warmed up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from lightning_mp.errors import ConfigurationError

Rate = TypeVar("Rate", float, Tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearWarmup:
    """A straight line from a small learning rate to the one a schedule asks for.

    Args:
        warmup_steps: Steps until the schedule's own learning rate is reached; 0 for none.
        start_factor: Learning rate of the first step, as a part of the schedule's, in (0, 1].
        start_lr: The same as a learning rate, in place of `start_factor`; where the schedule's is smaller, that is
            used.

    Raises:
        ConfigurationError: A number is outside of its range.

    Example:
        >>> warmup = LinearWarmup(warmup_steps=1000, start_lr=1e-6)
        >>> [f"{warmup.lr(5e-5, step):.3g}" for step in (0, 500, 1000, 5000)]
        ['1e-06', '2.55e-05', '5e-05', '5e-05']
    """

    warmup_steps: int = 1000
    start_factor: float = 0.02
    start_lr: float | None = None

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigurationError(f"`warmup_steps` must be 0 or more, got {self.warmup_steps!r}", "use 1000")
        if not 0 < self.start_factor <= 1:
            raise ConfigurationError(f"`start_factor` must lie in (0, 1], got {self.start_factor!r}", "use 0.02")
        if self.start_lr is not None and not 0 <= self.start_lr < math.inf:
            raise ConfigurationError(f"`start_lr` must be 0 or more, got {self.start_lr!r}", "use 1e-6")

    def lr(self, target: Rate, step: int) -> Rate:
        """Learning rate of a step.

        Args:
            target: The schedule's learning rate for this step, a number or a scalar tensor on any device.
            step: Steps taken before it.

        Returns:
            At most `target`; `target` itself from step `warmup_steps` on.
        """
        if step >= self.warmup_steps:
            return target
        start = target * self.start_factor if self.start_lr is None else at_most(target, self.start_lr)
        return start + (target - start) * (step / self.warmup_steps)


def at_most(rate: Rate, limit: float) -> Rate:
    """The smaller of both; of a tensor it reads nothing from the device.

    Args:
        rate: A number or a tensor.
        limit: The most it may be.
    """
    return rate.clamp(max=limit) if isinstance(rate, Tensor) else min(rate, limit)
