"""How a LightningModule hands a learning-rate schedule to its Trainer."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_mp.errors import ConfigurationError


def schedule_config(schedule: LRScheduler | ReduceLROnPlateau, module: pl.LightningModule) -> dict[str, Any]:
    """The `lr_scheduler` entry of `configure_optimizers`: once an epoch, unless the schedule has another `interval`.

    A schedule whose `steps_per_epoch` is None is given the Trainer's.

    Args:
        schedule: Any schedule of torch, or of `lightning_mp.optim`.
        module: The module; its Trainer is asked for the steps only where the schedule wants them.

    Raises:
        ConfigurationError: The schedule wants `steps_per_epoch`, and the training data has no length.
    """
    if getattr(schedule, "steps_per_epoch", 0) is None:
        _ = module.trainer.estimated_stepping_batches  # makes the loaders
        batches = module.trainer.num_training_batches
        if batches == math.inf:
            raise ConfigurationError(
                f"`{type(schedule).__name__}` needs the length of an epoch, and the training data has none",
                "give `steps_per_epoch`",
            )
        schedule.steps_per_epoch = math.ceil(batches / module.trainer.accumulate_grad_batches)  # type: ignore[union-attr]  # within a fit there is a Trainer
    return {
        "scheduler": schedule,
        "interval": getattr(schedule, "interval", "epoch"),
        "monitor": getattr(schedule, "monitor", None) or "val_loss",
    }
