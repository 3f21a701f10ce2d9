"""Log several numbers of one training step at once."""

from __future__ import annotations

from collections.abc import Mapping

import lightning.pytorch as pl
import torch


def log_metrics(
    trainer: pl.Trainer,
    values: Mapping[str, float],
    *,
    step: int | None = None,
    progress_bar: Mapping[str, float] | None = None,
) -> None:
    """Give numbers to the Trainer's metrics and loggers, the way of Lightning's `LearningRateMonitor`.

    `LightningModule.log` takes a third of a millisecond for each name, more than all else that a monitor does in a
    step, and keeps logging a value until there is a new one.

    Args:
        trainer: Inside `on_train_batch_end`.
        values: Numbers by name.
        step: The step they are logged at; by default the one that Lightning logs this batch at.
        progress_bar: What the progress bar shows of it, by names that are short enough for it.
    """
    found = {name: torch.tensor(value) for name, value in values.items()}
    trainer.callback_metrics.update(found)
    trainer.logged_metrics.update(found)
    if progress_bar:
        trainer.progress_bar_metrics.update(progress_bar)
    if not trainer.loggers:
        return
    if step is None:
        step = trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001 - the count that Lightning logs by
    for logger in trainer.loggers:
        logger.log_metrics({**values, "epoch": trainer.current_epoch}, step=step)
