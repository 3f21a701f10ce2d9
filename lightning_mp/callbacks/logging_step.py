"""Whether Lightning logs the step that goes on."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl


def is_logging_step(trainer: pl.Trainer) -> bool:
    """Whether this is one of the Trainer's logging steps, as Lightning's own monitors ask it.

    Args:
        trainer: Inside a hook of training.

    Returns:
        True every `log_every_n_steps` steps, in the step at which the run is told to stop, and always under
        `fast_dev_run`.
    """
    # Lightning has no public way to ask. `LearningRateMonitor` goes by `should_update_logs`, which first finds out
    # which of the loops is running: half of what a monitor takes in a step. In a hook of training it is this one.
    asked: Any = trainer
    every = asked.log_every_n_steps
    if every and ((asked.fit_loop.epoch_loop._batches_that_stepped + 1) % every == 0 or asked.should_stop):  # noqa: SLF001 - see above
        return True
    return bool(getattr(trainer, "fast_dev_run", False))
