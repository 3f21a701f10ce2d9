"""What a report remembers of a run, in bounded space, and how it travels in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any

from lightning_mp.callbacks.precision_report_series import Series
from lightning_mp.precision.loss_scale import LossScaleHistory
from lightning_mp.precision.overflow_event import OverflowEvent
from lightning_mp.precision.underflow_report import LayerLoss, UnderflowReport

_SKIPS = 256
_PROBES = 12
_LAYERS = 24


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """What is remembered of a run.

    Attributes:
        series: By name: `loss_scale`, `train_loss`, `lr-<Optimizer>`, `gradient_norm`, `memory/resident`,
            `memory/gpu`, and each metric of the validation.
        skips: Skipped steps, the first and the last of them.
        history: Counts of the scaler's steps.
        probes: What the measured backward passes lost, at most twelve over the run, its last one among them.
        headroom: Doublings of the scale until a gradient overflows, at the last probe.
        poisoned: Normalisation statistics that were not finite: `step`, `names`; `None` while none was.
        bad_batch: The first batch that held a NaN or an infinity: `step`, `batch`, `tensor`, `rows`, `columns`.
        loss_gone: The first training loss that was no number: `step`, `batch`, `finite` (whether that batch's values
            are; `None` where it was no longer at hand), `largest`, the magnitude of the largest of them, and
            `highest_before`, the highest loss just before it.
        growth: The weight matrix that grew most in the first steps: `weight`, `from` and `to`, its root mean square,
            and `step`.
        leaks: Columns that tell the label alone.
        evaluations: Metrics of validations and tests after the fit, by stage.
        began: When the fit began, ISO 8601 in UTC.
        steps: `Trainer.global_step` at the last batch seen.
        seconds: Spent in this and earlier parts of the fit.
    """

    series: dict[str, Series] = field(default_factory=dict)
    skips: list[OverflowEvent] = field(default_factory=list)
    history: LossScaleHistory = field(default_factory=LossScaleHistory)
    probes: list[UnderflowReport] = field(default_factory=list)
    headroom: float | None = None
    poisoned: dict[str, Any] | None = None
    bad_batch: dict[str, Any] | None = None
    loss_gone: dict[str, Any] | None = None
    growth: dict[str, Any] | None = None
    leaks: list[dict[str, Any]] = field(default_factory=list)
    evaluations: dict[str, dict[str, float | None]] = field(default_factory=dict)
    began: str | None = None
    steps: int = 0
    seconds: float = 0.0

    def add(self, name: str, step: int, value: float) -> None:
        """Append to a series."""
        self.series.setdefault(name, Series()).add(step, value)

    def take_skips(self, events: Sequence[OverflowEvent]) -> None:
        """Take the skips that are not remembered yet.

        Args:
            events: The latest of the run, oldest first.
        """
        last = (self.skips[-1].step, self.skips[-1].optimizer) if self.skips else (-1, -1)
        new = [event for event in events if (event.step, event.optimizer) > last]
        for event in new:
            self.add("loss_scale", event.step, event.scale)
        self.skips += new
        if len(self.skips) > _SKIPS:
            del self.skips[_SKIPS // 2 : -_SKIPS // 2]

    def take_probe(self, report: UnderflowReport, headroom: float | None) -> None:
        """Take what a probe found, its worst layers."""
        short = UnderflowReport(**{**_shallow(report), "layers": report.layers[:_LAYERS], "zero_gradients": ()})
        self.probes.append(short)
        self.headroom = headroom
        if len(self.probes) > _PROBES:
            self.probes = self.probes[::2] if len(self.probes) % 2 else [*self.probes[:-1:2], self.probes[-1]]

    def to_state(self) -> dict[str, Any]:
        """Plain Python, as a checkpoint holds it."""
        plain = {name: copy(getattr(self, name)) for name in _PLAIN}
        return {
            **plain,
            "leaks": [dict(leak) for leak in self.leaks],
            "evaluations": {stage: dict(metrics) for stage, metrics in self.evaluations.items()},
            "series": {name: series.to_state() for name, series in self.series.items()},
            "skips": [event.to_dict() for event in self.skips],
            "history": asdict(self.history),
            "probes": [_plain_probe(probe) for probe in self.probes],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RunRecord:
        """What `to_state` gave, as a record of its own."""
        return cls(
            **{name: copy(state[name]) for name in _PLAIN if name in state},
            leaks=[dict(leak) for leak in state["leaks"]],
            evaluations={stage: dict(metrics) for stage, metrics in state["evaluations"].items()},
            series={name: Series.from_state(series) for name, series in state["series"].items()},
            skips=[OverflowEvent.from_dict(event) for event in state["skips"]],
            history=LossScaleHistory(**state["history"]),
            probes=[
                UnderflowReport(
                    **{**probe, "zero_gradients": (), "layers": tuple(LayerLoss(**layer) for layer in probe["layers"])}
                )
                for probe in state["probes"]
            ],
        )


_PLAIN = ("headroom", "poisoned", "bad_batch", "loss_gone", "growth", "began", "steps", "seconds")


def _shallow(report: UnderflowReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__}


def _plain_probe(probe: UnderflowReport) -> dict[str, Any]:
    plain = asdict(probe)
    del plain["zero_gradients"]
    return {**plain, "layers": [dict(layer) for layer in plain["layers"]]}
