"""What each row could know of its key: count and sum over the strictly earlier rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def earlier_sums(key: ArrayLike, time: ArrayLike, value: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Count and sum of a value over the rows of the same key with a strictly smaller time.

    Rows of one time never see each other, and none sees itself.

    Args:
        key: (N,) integer codes, rows in any order.
        time: (N,) int64 UTC microseconds.
        value: (N,) numbers.

    Returns:
        (N,) int64 counts and (N,) float64 sums, in the order of the rows.

    Example:
        >>> earlier_sums([1, 1, 1, 2], [10, 20, 20, 30], [1.0, 0.0, 1.0, 1.0])
        (array([0, 1, 1, 0]), array([0., 1., 1., 0.]))
    """
    keys, times = np.asarray(key, dtype=np.int64), np.asarray(time, dtype=np.int64)
    values = np.asarray(value, dtype=np.float64)
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    before = np.concatenate([[0.0], np.cumsum(values[order])])
    new_key = np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]
    new_time = new_key | np.concatenate([[True], times[1:] != times[:-1]])[: len(keys)]
    row = np.arange(len(keys))
    start = np.maximum.accumulate(np.where(new_key, row, 0))
    here = np.maximum.accumulate(np.where(new_time, row, 0))
    count, total = np.empty(len(keys), dtype=np.int64), np.empty(len(keys))
    count[order] = here - start
    total[order] = before[here] - before[start]
    return count, total
