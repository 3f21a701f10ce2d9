"""Look for what moved a loss, and order it by likelihood."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.batch_ranges import BatchRange
from lightning_mp.precision.fluctuation_report import FluctuationFinding
from lightning_mp.precision.non_finite import non_finite_names

_MANY_SKIPS = 0.05  # of the steps; a scaler that looks for its scale skips far fewer
_SPIKE = 10.0
_RISE = 2.0
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FluctuationFacts:
    """What the run knew about itself when its loss moved.

    Args:
        parameters: Parameters by name.
        buffers: Buffers by name.
        attempts: Optimizer steps since the last validation.
        skipped: Those of them that the scaler skipped.
        skip_places: Where the last of these began, where it is known.
        scale: Loss scale; None without a scaler.
        gradient_norms: The last ones, unscaled, the oldest first.
        ranges: Of the last batches.
        usual_ranges: Of a batch at the last validation that was quiet.
        learning_rates: Largest learning rate at the last validation, and now.
        half: Whether float16 is computed in.
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    attempts: int = 0
    skipped: int = 0
    skip_places: tuple[str, ...] = ()
    scale: float | None = None
    gradient_norms: Sequence[float] = ()
    ranges: Sequence[BatchRange] = ()
    usual_ranges: Sequence[BatchRange] = ()
    learning_rates: tuple[float, float] = (0.0, 0.0)
    half: bool = False


def fluctuation_findings(facts: FluctuationFacts, *, improved: bool) -> tuple[FluctuationFinding, ...]:
    """Everything that may have moved the loss, the likeliest first.

    Args:
        facts: What the run knew.
        improved: Whether the loss moved for the better; then that is a finding of its own.

    Returns:
        At least one; of kind `improvement` or `nothing` where no cause was found.
    """
    found = [
        *_non_finite(facts.parameters, "non_finite_weights", "weights", 1.0),
        *_non_finite(facts.buffers, "non_finite_buffers", "buffers", 0.95),
        *_batches(facts),
        *_steps(facts),
        *_gradients(facts.gradient_norms),
        *_learning_rate(*facts.learning_rates),
    ]
    if improved:
        found.append(
            FluctuationFinding(
                kind="improvement",
                likelihood=0.6,
                text="the loss improved",
                cure="nothing; early in a run a loss falls fast",
            )
        )
    if not found:
        found.append(
            FluctuationFinding(
                kind="nothing",
                likelihood=0.1,
                text="weights, buffers, batches, gradients and the loss scale show nothing unusual",
                cure="lower the learning rate, or validate on more rows: neither precision nor these batches moved it",
            )
        )
    return tuple(sorted(found, key=lambda finding: -finding.likelihood))


def _non_finite(tensors: Mapping[str, Tensor], kind: str, what: str, likelihood: float) -> list[FluctuationFinding]:
    names = non_finite_names({name: tensor.detach() for name, tensor in tensors.items()})
    if not names:
        return []
    cure = {
        "weights": "go back to a checkpoint from before, and watch with `NonFiniteMonitor` and `LossScaleMonitor`",
        "buffers": "keep bad batches out of running statistics with `NormGuard`",
    }[what]
    return [
        FluctuationFinding(
            kind="non_finite_weights" if kind == "non_finite_weights" else "non_finite_buffers",
            likelihood=likelihood,
            text=f"{len(names)} of {len(tensors)} {what} hold a NaN or an infinity, first `{names[0]}`",
            cure=cure,
            places=tuple(names[:_SHOWN]),
        )
    ]


def _batches(facts: FluctuationFacts) -> list[FluctuationFinding]:
    bad = [entry.name for entry in facts.ranges if not entry.finite]
    if bad:
        text = f"the last batch holds a NaN or an infinity in `{bad[0]}`"
        cure = "find these rows in the data and repair or drop them"
        return [
            FluctuationFinding(
                kind="non_finite_batch", likelihood=0.9, text=text, cure=cure, places=tuple(bad[:_SHOWN])
            )
        ]
    usual: dict[str, float] = {}
    for entry in facts.usual_ranges:
        usual[entry.name] = max(usual.get(entry.name, 0.0), entry.largest)
    for entry in sorted(facts.ranges, key=lambda entry: -entry.largest):
        before = usual.get(entry.name, math.inf)
        overflows = facts.half and entry.largest > FLOAT16.largest and before <= FLOAT16.largest
        if overflows or (before > 0 and entry.largest > _SPIKE * before):
            beyond = f", beyond float16's {FLOAT16.largest:g}" if entry.largest > FLOAT16.largest else ""
            return [
                FluctuationFinding(
                    kind="batch_range",
                    likelihood=0.75 if overflows else 0.5,
                    text=f"`{entry.name}` of the last batch reaches {entry.largest:.3g}{beyond}, before {before:.3g}",
                    cure="look at this feature with `lightning-mp audit`; clip it or transform it",
                    places=(entry.name,),
                )
            ]
    return []


def _steps(facts: FluctuationFacts) -> list[FluctuationFinding]:
    if facts.scale is not None and (not math.isfinite(facts.scale) or facts.scale < 2.0**-126):
        return [
            FluctuationFinding(
                kind="dead_loss_scale",
                likelihood=0.92,
                text=f"the loss scale is {facts.scale:g}: every gradient is lost",
                cure="use `lightning_mp.mixed_precision`, whose scaler has a floor",
            )
        ]
    share = facts.skipped / facts.attempts if facts.attempts else 0.0
    if not facts.skipped or share < _MANY_SKIPS:
        return []
    place = f", the last one in `{facts.skip_places[0]}`" if facts.skip_places else ""
    return [
        FluctuationFinding(
            kind="skipped_steps",
            likelihood=min(0.85, 0.4 + share),
            text=f"{facts.skipped} of {facts.attempts} steps since the last validation were skipped{place}",
            cure="`LossScaleMonitor` names the layers; keep them in float32 with `KeepInFP32`",
            places=facts.skip_places[:_SHOWN],
        )
    ]


def _gradients(norms: Sequence[float]) -> list[FluctuationFinding]:
    finite = [norm for norm in norms if math.isfinite(norm)]
    if len(finite) < 3:
        return []
    usual, latest = median(finite), max(finite[-3:])
    if latest <= _SPIKE * max(usual, 1e-12):
        return []
    return [
        FluctuationFinding(
            kind="gradient_norm",
            likelihood=0.7,
            text=f"the gradient norm rose to {latest:.3g}, {latest / max(usual, 1e-12):.0f} times its median",
            cure="clip with `GradientClipping(max_norm=...)`, or lower the learning rate",
        )
    ]


def _learning_rate(before: float, now: float) -> list[FluctuationFinding]:
    if not before or now <= _RISE * before:
        return []
    return [
        FluctuationFinding(
            kind="learning_rate",
            likelihood=0.55,
            text=f"the learning rate rose from {before:.3g} to {now:.3g} since the last validation",
            cure="warm up slower with `LearningRateWarmup`, or lower the peak",
        )
    ]
