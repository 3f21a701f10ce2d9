"""The latest version of a key before a moment, for whole columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def as_of(key: Int64, time: Int64, asked_key: Int64, asked_time: Int64) -> Int64:
    """Row of the latest version of each asked key that is strictly older than the asked time.

    Args:
        key: (V,) codes from 0 on, of the versions; of versions of one key and time the last row counts.
        time: (V,) since when each holds.
        asked_key: (N,) codes; a negative one is no key.
        asked_time: (N,).

    Returns:
        (N,) rows of the versions; -1 where there is none yet.

    Example:
        >>> as_of(np.array([0, 0]), np.array([10, 20]), np.array([0, 0, 0, 1]), np.array([10, 20, 21, 99])).tolist()
        [-1, 0, 1, -1]
    """
    if not len(key):
        return np.full(len(asked_key), -1, dtype=np.int64)
    order = np.lexsort((time, key))
    moments = np.unique(np.concatenate([time, asked_time]))
    width = len(moments) + 1
    ranked = key[order] * width + np.searchsorted(moments, time[order])
    asked = asked_key * width + np.searchsorted(moments, asked_time)
    places = np.searchsorted(ranked, asked, side="left") - 1
    found = (places >= 0) & (asked_key >= 0)
    rows = order[np.maximum(places, 0)]
    return np.where(found & (key[rows] == asked_key), rows, -1)
