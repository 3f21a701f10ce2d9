"""Whether an event followed a row: the next event of the same pair, within a window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def followed_by(
    pair: npt.NDArray[np.int64],
    time: npt.NDArray[np.int64],
    is_event: npt.NDArray[np.bool_],
    within_us: int,
) -> npt.NDArray[np.bool_]:
    """Whether an event of the same pair happened at a row's time or up to `within_us` later.

    Args:
        pair: (N,) code of user and item.
        time: (N,) UTC microseconds, in any order.
        is_event: (N,) rows that are such events.
        within_us: Length of the window, both ends included.

    Returns:
        (N,); of an event's own row it says whether the pair has an event from then on, itself included.

    Example:
        >>> pair, time = np.array([1, 1, 2, 1]), np.array([0, 5, 5, 9])
        >>> followed_by(pair, time, np.array([False, True, False, False]), 5).tolist()
        [True, True, False, False]
    """
    order = np.lexsort((is_event, time, pair))  # at equal times rows come before events, so that they see them
    count = len(order)
    places = np.where(is_event[order], np.arange(count), count)
    following = np.minimum.accumulate(places[::-1])[::-1]
    found = following < count
    target = order[np.minimum(following, max(count - 1, 0))]
    answer = np.zeros(count, dtype=bool)
    answer[order] = found & (pair[target] == pair[order]) & (time[target] - time[order] <= within_us)
    return answer
