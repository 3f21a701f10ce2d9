"""Items of the events before each row, the latest last: the input of a next-item model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def item_sequences(
    user: Int64,
    time: Int64,
    item: npt.NDArray[np.int32],
    *,
    is_event: npt.NDArray[np.bool_],
    asked: Int64,
    length: int,
    delay_us: int = 0,
    window_us: int | None = None,
) -> npt.NDArray[np.int32]:
    """The last items of each row's user before the row; events of the row's own time are not seen.

    An event counts when its time lies in `[t - delay - window, t - delay)`. Events whose item the vocabulary does not
    know are passed over, so that 0 is padding and nothing else. Events of one time stand in the order of the log.

    Args:
        user: (N,) codes, from 0 on.
        time: (N,) UTC microseconds, in any order.
        item: (N,) vocabulary rows.
        is_event: (N,) which rows are events that count.
        asked: (M,) rows that are asked for.
        length: L, items kept.
        delay_us: Time until an event may be known.
        window_us: Length of the window; `None` for all time.

    Returns:
        (M, L), padded with 0 in front.

    Example:
        >>> user, time, item = np.array([0, 0, 0, 1]), np.array([1, 2, 2, 5]), np.array([7, 8, 9, 4], dtype=np.int32)
        >>> item_sequences(user, time, item, is_event=item > 0, asked=np.arange(4), length=2).tolist()
        [[0, 0], [0, 7], [0, 7], [0, 0]]
    """
    places = np.flatnonzero(is_event & (item > 0))
    places = places[np.lexsort((time[places], user[places]))]
    moments = np.unique(time[places])
    steps = len(moments) + 1

    def before(moment: Int64) -> Any:
        """How many events of earlier users, or of the same user and an earlier time, there are."""
        return np.searchsorted(keys, user[asked] * steps + np.searchsorted(moments, moment))

    keys = user[places] * steps + np.searchsorted(moments, time[places])
    until = time[asked] - delay_us
    end = before(until)
    first = np.searchsorted(keys, user[asked] * steps) if window_us is None else before(until - window_us)
    taken = end[:, None] - length + np.arange(length)
    inside = taken >= first[:, None]
    padded = np.append(item[places], np.int32(0))
    return np.asarray(padded[np.where(inside, taken, len(places))], dtype=np.int32)
