"""Gather from a Trainer what may have moved a validation loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl

from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor
from lightning_mp.precision.batch_ranges import BatchRange
from lightning_mp.precision.fluctuation_findings import FluctuationFacts


def fluctuation_facts(
    trainer: pl.Trainer,
    pl_module: pl.LightningModule,
    *,
    steps: tuple[int, int],
    norms: Sequence[float],
    ranges: Sequence[BatchRange],
    usual_ranges: Sequence[BatchRange],
    learning_rate_before: float,
) -> FluctuationFacts:
    """Everything that the check looks at; reads the loss scale.

    Args:
        trainer: At the end of a validation.
        pl_module: What is trained.
        steps: Optimizer steps since the validation before, tried and skipped.
        norms: The last gradient norms, the oldest first.
        ranges: Of the last batches.
        usual_ranges: Of those of a quiet validation.
        learning_rate_before: The largest learning rate at the validation before.
    """
    monitor = loss_scale_monitor(trainer)
    last = monitor.events[-1] if monitor is not None and monitor.events else None
    scaler = trainer.scaler
    return FluctuationFacts(
        parameters=dict(pl_module.named_parameters()),
        buffers=dict(pl_module.named_buffers()),
        attempts=max(steps[0], 0),  # below zero where a run is resumed with other monitors
        skipped=max(steps[1], 0),
        skip_places=last.layers if last is not None else (),
        scale=scaler.get_scale() if scaler is not None and scaler.is_enabled() else None,
        gradient_norms=norms,
        ranges=ranges,
        usual_ranges=usual_ranges,
        learning_rates=(learning_rate_before, largest_learning_rate(trainer)),
        half=trainer.precision in ("16-mixed", "16-true"),
    )


def loss_scale_monitor(trainer: pl.Trainer) -> LossScaleMonitor | None:
    """The first `LossScaleMonitor` of a Trainer."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
    return next((callback for callback in callbacks if isinstance(callback, LossScaleMonitor)), None)


def largest_learning_rate(trainer: pl.Trainer) -> float:
    """The largest learning rate of all parameter groups, as the schedules have it."""
    return max((float(group["lr"]) for one in trainer.optimizers for group in one.param_groups), default=0.0)
