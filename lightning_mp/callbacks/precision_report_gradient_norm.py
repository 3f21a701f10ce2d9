"""The norm of the gradients that an optimizer is about to step by."""

from __future__ import annotations

import lightning.pytorch as pl
from torch.optim import Optimizer

from lightning_mp.precision.gradient_norm import gradient_norm

_WHOLE_MODULE = ("SingleDeviceStrategy", "DDPStrategy")


def holds_whole_module(trainer: pl.Trainer) -> bool:
    """Whether each process has all weights and gradients."""
    return type(trainer.strategy).__name__ in _WHOLE_MODULE


def true_gradient_norm(trainer: pl.Trainer, optimizer: Optimizer) -> float | None:
    """2-norm of all gradients of an optimizer at their true size, whatever the loss scale; one read from the device.

    Args:
        trainer: Inside `on_before_optimizer_step`.
        optimizer: Whose gradients are asked for, dense or sparse.

    Returns:
        The norm, before clipping; `None` without gradients, or where a process has only a part of them.
    """
    if not holds_whole_module(trainer):
        return None
    scaler = trainer.scaler
    carried = scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False)  # it unscales itself
    norm = gradient_norm(optimizer, scale=scaler.get_scale() if carried and scaler is not None else 1.0)
    return None if norm is None else float(norm)
