"""What was found when a validation loss moved further than it should."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

FindingKind = Literal[
    "non_finite_weights",
    "non_finite_buffers",
    "non_finite_batch",
    "dead_loss_scale",
    "skipped_steps",
    "gradient_norm",
    "batch_range",
    "learning_rate",
    "improvement",
    "nothing",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FluctuationFinding:
    """One thing that may have moved the loss.

    Args:
        kind: What it is.
        likelihood: How much it speaks for being the cause, in (0, 1]; 1 where the loss can't have stayed as it was.
        text: What was found, one sentence, with names and numbers.
        cure: One thing to do.
        places: Names of parameters, buffers, layers or parts of a batch that it is about.

    Example:
        >>> FluctuationFinding(kind="nothing", likelihood=0.1, text="all is finite", cure="lower it").places
        ()
    """

    kind: FindingKind
    likelihood: float
    text: str
    cure: str
    places: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The finding in plain Python, as JSON takes it."""
        return {**asdict(self), "places": list(self.places)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FluctuationReport:
    """One validation whose loss moved further than the threshold, and what was found then.

    Args:
        step: `Trainer.global_step` at that validation.
        epoch: Number of the epoch, from 0.
        monitor: Name of the metric.
        value: The loss; None where it was not finite.
        reference: Median of the window before it; None before the first finite loss.
        change: Their difference over the window's usual size, with its sign; None where the loss was not finite.
        improved: Whether the loss moved for the better.
        findings: What was found, the likeliest cause first; at least one.

    Example:
        >>> nothing = FluctuationFinding(kind="nothing", likelihood=0.1, text="all is finite", cure="lower it")
        >>> report = FluctuationReport(step=9, epoch=0, monitor="val_loss", value=2.0, reference=1.0, change=1.0,
        ...     improved=False, findings=(nothing,))
        >>> FluctuationReport.from_dict(report.to_dict()) == report
        True
    """

    step: int
    epoch: int
    monitor: str
    value: float | None
    reference: float | None
    change: float | None
    improved: bool
    findings: tuple[FluctuationFinding, ...]

    @property
    def cause(self) -> FluctuationFinding:
        """The likeliest cause."""
        return self.findings[0]

    def to_dict(self) -> dict[str, Any]:
        """The report in plain Python, as JSON and a checkpoint take it."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "findings"}
        return {**plain, "findings": [finding.to_dict() for finding in self.findings]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FluctuationReport:
        """The report that `to_dict` wrote.

        Args:
            values: What `to_dict` gave.

        Returns:
            An equal report.
        """
        findings = tuple(
            FluctuationFinding(**{**finding, "places": tuple(finding["places"])}) for finding in values["findings"]
        )
        return cls(**{**values, "findings": findings})

    def __str__(self) -> str:
        """In words, as the warning says it."""
        if self.value is None:
            moved = f"`{self.monitor}` is not finite"
        else:
            direction = "improved" if self.improved else "worsened"
            moved = f"`{self.monitor}` {direction} by {abs(self.change or 0.0):.0%}, to {self.value:.4g}"
        against = "" if self.reference is None else f" against a running median of {self.reference:.4g}"
        found = "; ".join(finding.text for finding in self.findings[:3])
        return f"{moved}{against} at step {self.step}: {found}"
