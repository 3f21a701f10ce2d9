"""Whether Lightning logs the step that goes on."""

from __future__ import annotations

import lightning.pytorch as pl


def is_logging_step(trainer: pl.Trainer) -> bool:
    """Whether this is one of the Trainer's logging steps, as Lightning's own monitors ask it.

    Args:
        trainer: Inside a hook of training.

    Returns:
        True every `log_every_n_steps` steps, and always under `fast_dev_run`.
    """
    # Lightning has no public way to ask; `LearningRateMonitor` and `DeviceStatsMonitor` go by the same two.
    return bool(trainer._logger_connector.should_update_logs or getattr(trainer, "fast_dev_run", False))  # noqa: SLF001 - see above
