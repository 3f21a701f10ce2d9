"""When visits begin: day after day, by the hour of the day."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

START_US = 1_704_067_200_000_000  # Monday 2024-01-01 UTC
DAY_US = 86_400_000_000
# Visits by hour of the day, a plain evening peak: the REES46 head covers three hours and says nothing of it.
_BY_HOUR = np.array([3, 2, 1, 1, 1, 2, 3, 4, 5, 5, 5, 5, 6, 6, 5, 5, 5, 6, 7, 8, 9, 9, 7, 5], dtype=np.float64)


def visiting_time(quantile: NDArray[np.float64], days: int) -> NDArray[np.int64]:
    """Time by which a share of all visits has begun.

    Args:
        quantile: (N,) shares in [0, 1].
        days: Length of the log.

    Returns:
        (N,) int64 UTC microseconds, non-decreasing in `quantile`.

    Example:
        >>> visiting_time(np.array([0.0, 1.0]), 1) - START_US
        array([          0, 86400000000])
    """
    day, within = np.divmod(quantile * days, 1.0)
    edges = np.concatenate([[0.0], np.cumsum(_BY_HOUR) / _BY_HOUR.sum()])
    hours = np.interp(within, edges, np.arange(25))
    return START_US + day.astype(np.int64) * DAY_US + (hours * 3.6e9).astype(np.int64)
