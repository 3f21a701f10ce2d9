"""The running means of a training epoch, kept over a resume in the middle of it."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torchmetrics import Metric


def epoch_metrics(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
    """What a training epoch has added up so far: what was logged with `on_epoch=True`, and the module's metrics.

    Args:
        trainer: Inside `fit`.
        module: Its metrics that have seen a batch are read.

    Returns:
        `logged` and `metrics`: tensors, and lists of tensors, by name.
    """
    logged = {
        key: {**_copied(result.metric_state), "name": result.meta.name, "prog_bar": result.meta.prog_bar}
        for key, result in _results(trainer).items()
        if getattr(result, "is_tensor", False) and result.meta.on_epoch
    }
    metrics = {
        name: {"state": _copied(metric.metric_state), "count": metric.update_count}
        for name, metric in module.named_modules()
        if isinstance(metric, Metric) and metric.update_count
    }
    return {"logged": logged, "metrics": metrics}


def set_module_metrics(module: pl.LightningModule, metrics: dict[str, Any]) -> None:
    """Put the states of the module's metrics back; names that it no longer has are left out."""
    modules = dict(module.named_modules())
    for name, saved in metrics.items():
        metric = modules.get(name)
        if not isinstance(metric, Metric) or set(metric.metric_state) != set(saved["state"]):
            continue
        for key, value in saved["state"].items():
            setattr(metric, key, _on(value, metric.device))
        metric._update_count = saved["count"]  # noqa: SLF001 -- torchmetrics has no other way to say so
        metric._computed = None  # noqa: SLF001 - or torchmetrics gives what it computed before


def add_logged(trainer: pl.Trainer, logged: dict[str, Any]) -> None:
    """Add what was logged before the resume to what has been logged since; each name once, as soon as it is there.

    Called after the first batch, a mean comes out as in an uninterrupted run to the bit: of two numbers a sum is the
    same either way round.

    Args:
        trainer: Inside `fit`.
        logged: As `epoch_metrics` gave it; what was added is taken out of it.
    """
    for key, result in _results(trainer).items():
        if key not in logged or not getattr(result, "is_tensor", False):
            continue
        saved = logged.pop(key)
        value = saved["value"].to(result.value.device)
        if result.meta.is_mean_reduction:
            result.value = result.value + value
            result.cumulated_batch_size = result.cumulated_batch_size + saved["cumulated_batch_size"].to(
                result.cumulated_batch_size.device
            )
        elif result.meta.is_max_reduction:
            result.value = torch.maximum(result.value, value)
        elif result.meta.is_min_reduction:
            result.value = torch.minimum(result.value, value)
        elif result.meta.is_sum_reduction:
            result.value = result.value + value
        result._computed = None  # noqa: SLF001 -- what was computed before is no longer right


def epoch_value(saved: dict[str, Any]) -> Tensor:
    """What a name that no batch has logged since the resume comes to over the epoch."""
    count: Tensor | None = saved.get("cumulated_batch_size")
    value: Tensor = saved["value"]
    return value if count is None else value / count


def _results(trainer: pl.Trainer) -> Any:
    return trainer.fit_loop.epoch_loop._results  # noqa: SLF001 -- Lightning keeps the epoch's sums nowhere else


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: [v.detach().cpu() for v in value]
        if isinstance(value, list)
        else (value.detach().clone().cpu() if isinstance(value, Tensor) else value)
        for key, value in state.items()
    }


def _on(value: Any, device: torch.device) -> Any:
    return [v.to(device) for v in value] if isinstance(value, list) else value.to(device)
