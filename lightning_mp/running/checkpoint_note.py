"""What to know of a checkpoint that no metric chose."""

from __future__ import annotations

import csv
from math import isfinite
from pathlib import Path
from typing import Final

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

_MONITORS: Final = (("val_ndcg", "max"), ("val_loss", "min"))
"""What to choose a checkpoint by: lists by their order, anything else by its loss."""


def checkpoint_note(trainer: pl.Trainer) -> str | None:
    """One sentence where the checkpoint is the last one and not the best: what the best was, and what to add.

    Args:
        trainer: After its fit, before another run changes what it logged. The course of the metric is read from the
            file of a `CSVLogger`; without one the sentence says that nothing chose the checkpoint.

    Returns:
        The sentence; `None` where a metric chose the checkpoint, where none was kept or validated, and where the
        last one is the best.
    """
    callback = trainer.checkpoint_callback
    if not isinstance(callback, ModelCheckpoint) or callback.monitor is not None or not callback.best_model_path:
        return None
    name, mode = next((known for known in _MONITORS if known[0] in trainer.callback_metrics), (None, ""))
    if name is None:
        return None
    cure = f"give `ModelCheckpoint` a `monitor: {name}`" + (", `mode: max`" if mode == "max" else "")
    course = _course(trainer, name)
    if not course:
        return f"the last one, whatever `{name}` was before: {cure}"
    choose, last = max if mode == "max" else min, course[-1]
    best = choose((point for point in course if isfinite(point[1])), key=lambda point: point[1], default=last)
    if best[1] == last[1] or best is last:
        return None
    return f"the last one, `{name}` {last[1]:.4f}; the best was {best[1]:.4f} in epoch {best[0]}: {cure}"


def _course(trainer: pl.Trainer, name: str) -> list[tuple[int, float]]:
    """Epoch and value of each validation of the run that was logged."""
    for logger in trainer.loggers:
        if isinstance(logger, CSVLogger):
            logger.save()
            path = Path(logger.log_dir) / logger.experiment.NAME_METRICS_FILE
            if path.is_file():
                with path.open(encoding="utf-8", newline="") as file:
                    rows = [row for row in csv.DictReader(file) if row.get(name) and row.get("epoch")]
                return [(int(float(row["epoch"])), float(row[name])) for row in rows]
    return []
