"""Score an item by how often it was there before."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError


def popularity(
    train_item: ArrayLike, item: ArrayLike, *, train_time: ArrayLike | None = None, window: int | None = None
) -> NDArray[np.float64]:
    """Number of training rows of each item, of all or of the latest ones: the same list for everyone.

    Args:
        train_item: (N,) integer codes of the items of the training rows.
        item: (M,) codes of the items to score; one that is unseen scores 0.
        train_time: (N,) int64 UTC microseconds; needed for a window.
        window: Microseconds: only rows after the last one's time less this count. All rows when left out.

    Returns:
        (M,) float64 counts, no probabilities.

    Raises:
        ConfigurationError: `window` is not above 0 or lacks `train_time`, or there is not one time a row.

    Example:
        >>> popularity([7, 7, 3], [3, 7, 5])
        array([1., 2., 0.])
        >>> popularity([7, 7, 3], [3, 7, 5], train_time=[10, 20, 30], window=15)
        array([1., 1., 0.])
    """
    rows = np.asarray(train_item, dtype=np.int64)
    if window is not None:
        rows = rows[_latest(rows, train_time, window)]
    known, counts = np.unique(rows, return_counts=True)
    wanted = np.asarray(item, dtype=np.int64)
    if not len(known):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, counts[place], 0).astype(np.float64)


def _latest(rows: NDArray[np.int64], time: ArrayLike | None, window: int) -> NDArray[np.bool_]:
    if time is None:
        raise ConfigurationError("a `window` needs the times of the training rows", "give `train_time`")
    if window <= 0:
        raise ConfigurationError(f"`window` must be above 0 microseconds, got {window!r}", "leave it out for all rows")
    times = np.asarray(time, dtype=np.int64)
    if times.shape != rows.shape:
        raise ConfigurationError(f"there are {len(rows):,} items and {len(times):,} times", "give one time a row")
    return np.asarray(times > times.max() - window) if len(times) else np.zeros(0, dtype=bool)
