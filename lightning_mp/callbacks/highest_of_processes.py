"""What the processes of a run agree on."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor


def highest_of_processes(trainer: pl.Trainer, value: Tensor | float) -> float:
    """The largest of a number among all processes; all have to ask, or those that do wait forever.

    Args:
        trainer: The run's.
        value: This process's; a () tensor is read from its device, a plain number of a single process from nowhere.
    """
    if trainer.world_size == 1:
        return float(value)
    found = torch.as_tensor(value, dtype=torch.float32, device=trainer.strategy.root_device)
    return float(trainer.strategy.reduce(found, reduce_op="max"))
