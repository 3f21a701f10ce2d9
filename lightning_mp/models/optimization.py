"""What `configure_optimizers` of our modules answers."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable

from lightning_mp.models.schedule_config import schedule_config
from lightning_mp.optim.parameter_groups import parameter_groups


def optimization(
    module: pl.LightningModule,
    optimizer: OptimizerCallable,
    lr_scheduler: LRSchedulerCallable | None,
    *,
    weight_decay: float | None = None,
) -> Any:
    """The optimizer over all parameters, and the schedule when there is one.

    Args:
        module: What is trained.
        optimizer: What makes the optimizer.
        lr_scheduler: What makes a schedule from it.
        weight_decay: Of the matrices, in place of the optimizer's own for all parameters.
    """
    decay = weight_decay
    made = optimizer(module.parameters() if decay is None else parameter_groups(module, weight_decay=decay))
    if lr_scheduler is None:
        return made
    return {"optimizer": made, "lr_scheduler": schedule_config(lr_scheduler(made), module)}
