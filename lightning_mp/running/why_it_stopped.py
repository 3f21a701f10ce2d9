"""Why a fit ended before its limits, where Lightning itself says nothing."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, EarlyStopping

from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor
from lightning_mp.precision.loss_scale_verdict import collapse


def why_it_stopped(trainer: pl.Trainer, callbacks: list[Callback]) -> list[str]:
    """A line for each callback that ended the fit; one that names nobody where another piece of code did.

    Args:
        trainer: After its fit, before a test loads the states that callbacks had at the best checkpoint.
        callbacks: Of the trainer.

    Returns:
        The lines; none where `max_epochs` or another limit was reached, which Lightning says.
    """
    if trainer.global_step == 0:
        limits = "`max_epochs`, `max_steps`, `limit_train_batches`"
        return [f"trained:    nothing, no step was taken and the weights are those it began with; see {limits}"]
    if not trainer.should_stop:
        return []
    told = [line for callback in callbacks if (line := _told(callback)) is not None]
    unknown = f"after step {trainer.global_step:,}: a callback, or the module, set `trainer.should_stop`"
    return [f"stopped:    {line}" for line in told or [unknown]]


def _told(callback: Callback) -> str | None:
    if isinstance(callback, EarlyStopping):
        return _early(callback)
    if isinstance(callback, LossScaleMonitor) and callback.on_collapse == "stop":
        verdict = collapse(callback.history, callback.events, min_scale=callback.min_scale, patience=callback.patience)
        if verdict is not None:
            return f"after {callback.history.attempts:,} steps: {verdict[0]} (`LossScaleMonitor`)"
    return None


def _early(callback: EarlyStopping) -> str | None:
    if callback.wait_count >= callback.patience:
        return (
            f"after epoch {callback.stopped_epoch}: `{callback.monitor}` was no better in {callback.wait_count} "
            f"validations than {float(callback.best_score):.4g} (`EarlyStopping`)"
        )
    reason = callback.stopping_reason_message
    if reason is None:
        return None
    return f"after epoch {callback.stopped_epoch}: {reason.partition(' Signaling Trainer')[0]} (`EarlyStopping`)"
