"""Preference of a user for an item: the highest weight of the pair's events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def preference_scores(
    pair: npt.NDArray[np.int64], time: npt.NDArray[np.int64], weight: npt.NDArray[np.float64], highest: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """One row a pair, at its first event, with the highest weight of all its events.

    The score looks ahead from that row, as a label does; give the events of one part of a time split at a time, or the
    training part is labelled with what happened in the test part.

    Args:
        pair: (N,) code of user and item.
        time: (N,) UTC microseconds, in any order; of equally early events the first row is taken.
        weight: (N,) weight of each event, from 0 on.
        highest: Weight that becomes 1.

    Returns:
        (P,) int64, row of each pair's first event, ascending; (P,) float32 in [0, 1].

    Example:
        >>> rows, scores = preference_scores(np.array([7, 7, 8]), np.array([5, 3, 4]), np.array([1.0, 0.1, 0.0]), 1.0)
        >>> rows.tolist(), scores.tolist()
        ([1, 2], [1.0, 0.0])
    """
    if not len(pair):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    order = np.lexsort((time, pair))
    first = np.flatnonzero(np.diff(pair[order], prepend=pair[order[0]] - 1))
    rows = order[first]
    scores = np.maximum.reduceat(weight[order], first) / highest
    ascending = np.argsort(rows)
    return rows[ascending], scores[ascending].astype(np.float32)
