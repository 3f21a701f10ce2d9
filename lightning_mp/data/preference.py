"""Preference of a user for an item: the highest weight of the pair's events, or their decayed sum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def preference_scores(
    pair: npt.NDArray[np.int64],
    time: npt.NDArray[np.int64],
    weight: npt.NDArray[np.float64],
    *,
    half_life_us: int | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """One row a pair, at its first event, with the highest weight of all its events or their decayed sum.

    The score looks ahead from that row, as a label does; give the events of one part of a time split at a time, or the
    training part is labelled with what happened in the test part.

    Args:
        pair: (N,) code of user and item.
        time: (N,) UTC microseconds, in any order; of equally early events the first row is taken.
        weight: (N,) weight of each event, from 0 on.
        half_life_us: Adds the weights up instead; an event counts half when it is that much later than the first.

    Returns:
        (P,) int64, row of each pair's first event, ascending; (P,) float64 from 0 on.

    Example:
        >>> pair, time, weight = np.array([7, 7, 8]), np.array([5, 3, 4]), np.array([1.0, 0.5, 0.0])
        >>> preference_scores(pair, time, weight)[1].tolist()
        [1.0, 0.0]
    """
    if not len(pair):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)
    order = np.lexsort((time, pair))
    first = np.flatnonzero(np.diff(pair[order], prepend=pair[order[0]] - 1))
    rows = order[first]
    if half_life_us is None:
        scores = np.maximum.reduceat(weight[order], first)
    else:
        lengths = np.diff(np.append(first, len(order)))
        since = time[order] - np.repeat(time[rows], lengths)
        scores = np.add.reduceat(weight[order] * 0.5 ** (since / half_life_us), first)
    ascending = np.argsort(rows)
    return rows[ascending], scores[ascending]
