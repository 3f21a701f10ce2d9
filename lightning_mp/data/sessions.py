"""Sessions: a user's events with no long pause between them, and how long each held the user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Sessions of a log.

    Attributes:
        session: (N,) number of each event's session; what it is depends on earlier events alone.
        dwell: (N,) float64, seconds until the user's next event of the same session; NaN for the last of a session.
            It is known only when that event comes.
        count: How many sessions there are.
    """

    session: Int64
    dwell: npt.NDArray[np.float64]
    count: int


def sessions(user: Int64, time: Int64, gap_us: int) -> Sessions:
    """Cut each user's events where there is a pause of at least `gap_us`.

    Args:
        user: (N,) codes.
        time: (N,) UTC microseconds, in any order.
        gap_us: Length of the pause.

    Example:
        >>> found = sessions(np.array([1, 1, 2, 1]), np.array([0, 60_000_000, 0, 9_000_000_000]), 1_800_000_000)
        >>> found.session.tolist(), found.dwell.tolist()
        ([0, 0, 2, 1], [60.0, nan, nan, nan])
    """
    order = np.lexsort((time, user))
    users, times = user[order], time[order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (users[1:] != users[:-1]) | (times[1:] - times[:-1] >= gap_us)
    number = np.cumsum(starts) - 1
    session = np.empty(len(order), dtype=np.int64)
    session[order] = number
    # Events of one time share their dwell: the seconds until the next later time.
    later = np.searchsorted(number * 1.0, number, side="right") - 1
    dwell = np.full(len(order), np.nan)
    following = np.arange(len(order)) + 1
    same = (following < len(order)) & ~np.append(starts[1:], True)
    dwell[same] = (times[following[same]] - times[same]) / 1e6
    # Backwards over ties: an event with another of its own time behind it takes that one's dwell.
    ties = same & (dwell == 0)
    for place in np.flatnonzero(ties)[::-1].tolist():
        dwell[place] = dwell[place + 1] if place < later[place] else np.nan
    out = np.empty(len(order))
    out[order] = dwell
    return Sessions(session=session, dwell=out, count=int(number[-1]) + 1 if len(order) else 0)
