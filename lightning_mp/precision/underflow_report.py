"""What a backward pass in float16 lost, layer by layer, and what would cure it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.non_finite import layer_of

# A gradient this far below that of its layer's weights is what rounding leaves of a true zero: a sum over a batch that
# cancels, as that of a bias before a normalisation, still has the rounding errors of its terms.
_ROUNDING_FLOOR = 4 * FLOAT16.relative_step
_LARGEST_BITS = 40
_MOST_ARRIVES, _LITTLE_ARRIVES = 0.25, 0.9  # lost norms


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterLoss:
    """What one parameter's gradient lost.

    Args:
        name: As `named_parameters` gives it.
        size: Number of values.
        true_norm: Norm of the gradient that a large enough loss scale gives, times the loss scale.
        lost_norm: Norm of the difference to it, times the loss scale.
        values: Values that are not zero in the true gradient.
        flushed: Those of them that became zero.
    """

    name: str
    size: int
    true_norm: float
    lost_norm: float
    values: int
    flushed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoss:
    """What the gradients of one layer lost.

    Args:
        layer: Name of the module.
        lost_norm: Norm of what was lost over the norm of the true gradient.
        flushed_fraction: Share in [0, 1] of the values other than zero that became zero.
    """

    layer: str
    lost_norm: float
    flushed_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderflowReport:
    """What the backward pass of one step lost to float16's smallest values.

    Args:
        step: `Trainer.global_step` of the step.
        scale: Its loss scale.
        lost_norm: Norm of what was lost over the norm of the true gradient, all probed parameters together.
        flushed_fraction: Share in [0, 1] of all values other than zero that became zero.
        layers: The layers, worst first.
        zero_gradients: Parameters whose true gradient is zero, such as a bias before a normalisation: what they have is
            rounding, at any scale, and they stand in no other figure but the global one.
        bits: Bits of scale between the pass and its reference. Negative where the scale could not rise without an
            overflow: then the figures are for a scale 2**bits times this one, and this one loses less.

    Example:
        >>> report = underflow_report([
        ...     ParameterLoss(name="top.weight", size=8, true_norm=4.0, lost_norm=0.5, values=8, flushed=2)
        ... ], step=5, scale=1.0, bits=8)
        >>> report.lost_norm, report.layers[0].layer, report.cure(0.01)
        (0.125, 'top', 16.0)
    """

    step: int
    scale: float
    lost_norm: float
    flushed_fraction: float
    layers: tuple[LayerLoss, ...]
    zero_gradients: tuple[str, ...]
    bits: int

    def cure(self, threshold: float) -> float:
        """Loss scale at which no layer loses more than a threshold; its own scale if none does.

        Each doubling halves what is lost, once most of the gradient arrives; before that it takes two more, and where
        nearly nothing arrives the scale is a first step: the next report says how much more is needed.

        Args:
            threshold: Largest lost norm of a layer to put up with, in (0, 1).
        """
        worst = max((layer.lost_norm for layer in self.layers), default=0.0)
        if self.bits < 0 or worst <= threshold:
            return self.scale
        doublings = math.ceil(math.log2(worst / threshold)) + (2 if worst > _MOST_ARRIVES else 0)
        return self.scale * 2.0 ** min(doublings, _LARGEST_BITS)


def underflow_report(losses: Sequence[ParameterLoss], *, step: int, scale: float, bits: int) -> UnderflowReport | None:
    """Put the losses of the parameters together.

    Args:
        losses: A parameter may stand in it several times.
        step: Number of the step.
        scale: Its loss scale.
        bits: Bits of scale between the pass and its reference.

    Returns:
        The report, or None if there is nothing to tell: no gradient, or one that is not finite.
    """
    true, lost = (_norm(getattr(loss, which) for loss in losses) for which in ("true_norm", "lost_norm"))
    if not true or not math.isfinite(true) or not math.isfinite(lost):
        return None
    zero = _zero_gradients(losses)
    by_layer: dict[str, list[ParameterLoss]] = {}
    for loss in losses:
        if loss.name not in zero and loss.true_norm:
            by_layer.setdefault(layer_of(loss.name), []).append(loss)
    layers = [
        LayerLoss(
            layer=layer,
            lost_norm=_norm(own.lost_norm for own in part) / _norm(own.true_norm for own in part),
            flushed_fraction=_share(part),
        )
        for layer, part in by_layer.items()
    ]
    return UnderflowReport(
        step=step,
        scale=scale,
        lost_norm=lost / true,
        flushed_fraction=_share([loss for loss in losses if loss.name not in zero]),
        layers=tuple(sorted(layers, key=lambda layer: -layer.lost_norm)),
        zero_gradients=tuple(zero),
        bits=bits,
    )


def underflow_text(report: UnderflowReport, *, threshold: float, headroom: float | None) -> tuple[str, str]:
    """Say in words what is lost where, and what to do.

    Args:
        report: A report with a layer above the threshold.
        threshold: The lost norm from which on it is too much.
        headroom: Doublings of the scale until a gradient overflows, if known.

    Returns:
        The problem and a hint.
    """
    bad = [layer for layer in report.layers if layer.lost_norm > threshold]
    named = ", ".join(f"`{layer.layer}` {layer.lost_norm:.1%}" for layer in bad[:3])
    more = f" (and of {len(bad) - 3} more)" if len(bad) > 3 else ""
    at = f"at loss scale {report.scale:g}, step {report.step}"
    problem = f"gradients underflow in float16 {at}: lost of their norm: {named}{more}"
    if report.flushed_fraction >= 0.01:
        problem += f"; {report.flushed_fraction:.0%} of all values other than zero became zero"
    cure = report.cure(threshold)
    if headroom is not None and cure > report.scale * 2.0**headroom:
        layers = ", ".join(f"`{layer.layer}`" for layer in bad[:3])
        return problem, f"no loss scale fits both the smallest and the largest: keep {layers} in float32 (`KeepInFP32`)"
    effect = "cures it" if bad[0].lost_norm < _LITTLE_ARRIVES else "is a first step"
    return problem, f"a loss scale of {cure:g} {effect}: raise `init_scale` to that, or let the scaler grow sooner"


def _zero_gradients(losses: Sequence[ParameterLoss]) -> list[str]:
    spread = {loss.name: loss.true_norm / math.sqrt(loss.size) for loss in losses}
    largest: dict[str, float] = {}
    for name, value in spread.items():
        layer = layer_of(name)
        largest[layer] = max(largest.get(layer, 0.0), value)
    return [name for name, value in spread.items() if value < _ROUNDING_FLOOR * largest[layer_of(name)]]


def _norm(values: Iterable[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def _share(losses: Sequence[ParameterLoss]) -> float:
    values = sum(loss.values for loss in losses)
    return sum(loss.flushed for loss in losses) / values if values else 0.0
