"""Whether an event followed a row of the same pair, within a window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def followed_by(
    pair: Int64, time: Int64, is_event: Mask, within_us: int, *, is_row: Mask | None = None, last_touch: bool = False
) -> Mask:
    """Whether an event of the same pair happened at a row's time or up to `within_us` later.

    Args:
        pair: (N,) code of user and item.
        time: (N,) UTC microseconds, in any order.
        is_event: (N,) rows that are such events.
        within_us: Length of the window, both ends included.
        is_row: (N,) rows that may be followed; all that are no events when left out.
        last_touch: Whether an event counts for the latest rows before it alone, those of one time together; else for
            every row within the window.

    Returns:
        (N,), false for what is not a row.

    Example:
        >>> pair, time = np.array([1, 1, 1, 2]), np.array([0, 3, 5, 5])
        >>> event = np.array([False, False, True, False])
        >>> followed_by(pair, time, event, 5).tolist(), followed_by(pair, time, event, 5, last_touch=True).tolist()
        ([True, True, False, False], [False, True, False, False])
    """
    rows = ~is_event if is_row is None else is_row & ~is_event
    # At equal times rows come before events, so that they see them.
    order = np.lexsort((is_event, time, pair))
    count = len(order)
    places = np.where(is_event[order], np.arange(count), count)
    following = np.minimum.accumulate(places[::-1])[::-1] if count else places
    found = following < count
    target = order[np.minimum(following, max(count - 1, 0))]
    inside = found & (pair[target] == pair[order]) & (time[target] - time[order] <= within_us) & rows[order]
    if last_touch and count:
        inside &= ~_row_between(pair, time, rows, order, following)
    answer = np.zeros(count, dtype=bool)
    answer[order] = inside
    return answer


def _row_between(pair: Int64, time: Int64, rows: Mask, order: Int64, following: Int64) -> Mask:
    """Whether a later row of the same pair stands before the event that follows a row; all in sorted order."""
    count = len(order)
    moments = np.cumsum(np.diff(pair[order], prepend=-1).astype(bool) | np.diff(time[order], prepend=-1).astype(bool))
    last = np.searchsorted(moments, moments, side="right")  # behind the rows of the same pair and time
    places = np.where(rows[order], np.arange(count), count)
    next_row = np.append(np.minimum.accumulate(places[::-1])[::-1], count)[last]
    return np.asarray(next_row < following)
