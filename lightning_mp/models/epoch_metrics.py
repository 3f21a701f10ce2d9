"""Metrics at the end of an epoch: logged, and said to be undefined where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_warn

from lightning_mp.errors import LightningMPWarning


def log_epoch_metrics(
    module: pl.LightningModule, metrics: Mapping[str, Any], warned: set[str], *, prog_bar: tuple[str, ...] = ()
) -> None:
    """Log each metric under its key and reset it; one that is undefined is NaN, and said once.

    Args:
        module: What logs.
        metrics: By key, such as `val_auc`; each has `compute`, `reset` and `reason`.
        warned: Keys that were said already; added to.
        prog_bar: Keys that the progress bar shows.
    """
    for key, metric in metrics.items():
        value, reason = metric.compute(), metric.reason
        module.log(key, value, prog_bar=key in prog_bar, sync_dist=True)  # equal on all processes already
        metric.reset()
        if reason is not None and not module.trainer.sanity_checking and key not in warned:
            warned.add(key)
            rank_zero_warn(f"`{key}` is undefined: {reason}", category=LightningMPWarning)
