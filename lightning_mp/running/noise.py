"""Words of Lightning and jsonargparse that the user of a recipe can do nothing about."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_WARNINGS = (
    ".*does not have many workers",  # batches are gathered from a map: a worker would only copy them
    ".*(LeafSpec|treespec)",  # of torch, in Lightning
    r"\s*(By default only one Jsonargparse|.*was deprecated in v4)",  # of jsonargparse, in Lightning
    ".*not supported by the model summary",  # it leaves out the size in MB under bfloat16
    ".*dirpath has changed",  # of checkpoints, where one is measured and none written
)


@contextmanager
def without_noise() -> Iterator[None]:
    """Leave them out, and advertisements for packages that nobody asked for; everything else is shown."""
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")

    def keep(record: logging.LogRecord) -> bool:
        return "Tip: For seamless cloud" not in str(record.msg)

    log.addFilter(keep)
    try:
        with warnings.catch_warnings():
            for message in _WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        log.removeFilter(keep)
