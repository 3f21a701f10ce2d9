"""The norm of the gradients that an optimizer is about to step by."""

from __future__ import annotations

import lightning.pytorch as pl
from torch import nn
from torch.optim import Optimizer

_WHOLE_MODULE = ("SingleDeviceStrategy", "DDPStrategy")


def gradient_norm(trainer: pl.Trainer, optimizer: Optimizer) -> float | None:
    """2-norm of all gradients of an optimizer at their true size, whatever the loss scale; one read from the device.

    Args:
        trainer: Inside `on_before_optimizer_step`.
        optimizer: Whose gradients are asked for, dense or sparse.

    Returns:
        The norm, before clipping; `None` without gradients, or where a process has only a part of them.
    """
    if type(trainer.strategy).__name__ not in _WHOLE_MODULE:
        return None
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not gradients:
        return None
    values = [g._values() if g.is_sparse else g for g in gradients]  # noqa: SLF001 - torch has no norm of sparse ones
    norm = float(nn.utils.get_total_norm(values))
    scaler = trainer.scaler
    if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
        norm /= float(scaler.get_scale()) or 1.0  # gradients of an optimizer that unscales itself
    return norm
