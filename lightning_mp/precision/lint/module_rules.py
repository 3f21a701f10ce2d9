"""What float16 breaks, seen in a module that is built, and in its optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torchmetrics import Metric

from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.lint.finding import LintFinding

_HALF = (torch.float16, torch.bfloat16)
_PEAK = 5e-4


def findings_in_modules(module: nn.Module, *, precision: str, device_type: str) -> Iterator[LintFinding]:
    """What can be told from a module's layers and parameters.

    Args:
        module: The outermost module.
        precision: As the Trainer has it.
        device_type: Where it will run.
    """
    mixed = precision.endswith("-mixed")
    for name, layer in module.named_modules():
        place = name or type(module).__name__
        if isinstance(layer, nn.BCELoss) and mixed:
            problem = "`BCELoss` refuses to run under autocast on a GPU; a CPU runs it, and hides that"
            yield LintFinding(code="MP101", severity="error", place=place, problem=problem)
        if isinstance(layer, nn.modules.loss._Loss) and getattr(layer, "reduction", "") == "sum":  # noqa: SLF001 - the base of all losses
            problem = "a sum over the batch times the loss scale overflows float16 at the first step"
            if precision.startswith("16"):
                yield LintFinding(code="MP104", severity="warning", place=place, problem=problem)
        if isinstance(layer, nn.LSTM) and device_type == "cpu" and precision.startswith("16"):
            problem = "an LSTM has no float16 kernel on a CPU"
            yield LintFinding(code="MP109", severity="error", place=place, problem=problem)
        if isinstance(layer, Metric):
            yield from _metric(layer, place)
    if mixed:
        for name, parameter in module.named_parameters():
            if parameter.dtype in _HALF and parameter.requires_grad:
                problem = (
                    f"a parameter in {str(parameter.dtype).removeprefix('torch.')}: the scaler refuses its gradient"
                )
                yield LintFinding(code="MP107", severity="error", place=name, problem=problem)


def findings_in_optimizers(
    optimizers: Iterable[Optimizer], *, precision: str, warmed: bool = False, max_lr: float | None = None
) -> Iterator[LintFinding]:
    """What can be told from the settings of optimizers of Adam's kind; rates of others, as of SGD, are other units.

    Args:
        optimizers: Those of the run.
        precision: As the Trainer has it.
        warmed: Whether the learning rate is warmed up already.
        max_lr: Learning rate that a warm-up lets no step exceed; None for no limit.

    Source:
        The ceiling of 5e-4: a field report of an e-commerce ranking project, *peak at most 5e-4*, with AdamW.
    """
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        if not of_adams_kind(kind):
            continue
        settings = {**optimizer.defaults}
        rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
        rates += [float(group["max_lr"]) for group in optimizer.param_groups if "max_lr" in group]
        eps = min([float(group.get("eps", settings.get("eps", 1.0))) for group in optimizer.param_groups], default=1.0)
        peak = min(max(rates, default=0.0), float("inf") if max_lr is None else max_lr)
        yield from setting_findings(kind, peak, eps, precision=precision, warmed=warmed)


def of_adams_kind(kind: str) -> bool:
    """Whether the ceiling of learning rates holds for an optimizer: a step of Adam's moves a weight by about the rate.

    Args:
        kind: Name of its class.
    """
    return "adam" in kind.lower()


def setting_findings(
    kind: str, lr: float, eps: float, *, precision: str, warmed: bool = False
) -> Iterator[LintFinding]:
    """What can be told from an optimizer of Adam's kind by its settings alone.

    Args:
        kind: Name of its class.
        lr: Largest learning rate.
        eps: Its epsilon.
        precision: As the Trainer has it.
        warmed: Whether the learning rate is warmed up already.
    """
    if precision == "16-true" and eps < FLOAT16.smallest_normal:
        problem = f"eps={eps:g} in float16 guards nothing: the first step writes NaN into the weights"
        yield LintFinding(code="MP110", severity="error", place=kind, problem=problem)
    if precision.startswith("16") and lr > _PEAK:
        problem = f"a learning rate of {lr:g} is above {_PEAK:g}, from where on float16 runs were seen to diverge"
        done: Literal["", "warmup"] = "warmup" if warmed else ""
        yield LintFinding(code="MP111", severity="warning", place=kind, problem=problem, done=done)


def _metric(metric: Metric, place: str) -> Iterator[LintFinding]:
    states = [getattr(metric, name) for name in metric._defaults]  # noqa: SLF001 - torchmetrics names its states nowhere else
    short = [state for state in states if isinstance(state, torch.Tensor) and state.dtype in _HALF]
    if short:
        problem = (
            f"its states add up in {str(short[0].dtype).removeprefix('torch.')}, which is full after a few thousand"
        )
        yield LintFinding(code="MP106", severity="warning", place=place, problem=problem)
