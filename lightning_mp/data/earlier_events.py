"""EarlierEvents: what lies in the window before an event, for many events at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.history import History

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_HALF: Final = 32
"""Bits of a count: two of them ride in one sum, which halves the work."""


class EarlierEvents:
    """Events in the order of entity and time, in which windows are found by binary search.

    Args:
        time: (M,) int64 microseconds, ascending within an entity.
        starts: (E,) where each entity begins; `E` times the span of `time` must fit in 64 bits.

    Example:
        >>> events = EarlierEvents(np.array([10, 20, 20, 5]), np.array([0, 3]))
        >>> clicks = events.values(History(of="click", by=("user",)), np.arange(4), np.ones(4, dtype=bool))
        >>> clicks.tolist()
        [0.0, 1.0, 1.0, 0.0]
    """

    def __init__(self, time: Int64, starts: Int64) -> None:
        lengths = np.diff(starts, append=len(time))
        earliest = time.min()
        bits = (int(time.max()) - int(earliest)).bit_length()
        # One number a row that ascends all the way: the entity's in the upper bits, the time in the lower ones.
        numbers = np.arange(len(starts), dtype=np.uint64) << np.uint64(min(bits, 63))
        self._key = np.repeat(numbers, lengths)
        self._key |= time.view(np.uint64) - earliest.view(np.uint64)
        self._start = np.repeat(starts, lengths)
        differs = np.empty(len(time), dtype=bool)
        differs[0] = False
        np.not_equal(self._key[1:], self._key[:-1], out=differs[1:])
        self._tie = np.maximum.accumulate(np.where(differs, np.arange(len(time)), 0))

    def values(
        self,
        history: History,
        asked: Int64,
        of: Mask,
        *,
        per: Mask | None = None,
        numbers: Float64 | Int32 | None = None,
        prior_mean: float = 0.0,
    ) -> Float64:
        """A history of some of the events.

        Args:
            history: What is wanted.
            asked: (Q,) the events that it is wanted of, ascending.
            of: (M,) whether each event counts; of a sum, a mean and distinct values: and has a number.
            per: (M,) whether it counts below the line of a rate.
            numbers: (M,) what is summed; of distinct values, a code of each.
            prior_mean: Mean of the training part, for `prior`.

        Returns:
            (Q,) NaN where there is none.
        """
        until = self._first_since(asked, history.delay_us)
        window = history.window_us
        start = self._start[asked] if window is None else self._first_since(asked, history.delay_us + window)
        if history.measure == "count":
            return _between(of, start, until).astype(np.float64)
        if history.measure == "recency":
            return self._recency(asked, of, start, until)
        if history.measure == "distinct":
            return self._distinct(np.asarray(numbers, dtype=np.int32), of, start, until)
        if per is not None:
            weights = per * np.int64(1 << _HALF)
            weights += of
            both = _between(weights, start, until)
            above = (both & ((1 << _HALF) - 1)).astype(np.float64)
            return _ratio(above, both >> _HALF, history.prior, prior_mean)
        sums = _sums(np.where(of, np.asarray(numbers, dtype=np.float64), 0.0), start, until)
        if history.measure == "sum":
            return sums
        return _ratio(sums, _between(of, start, until), history.prior, prior_mean)

    def _first_since(self, asked: Int64, lag: int) -> Int64:
        """The entity's first event that is no more than `lag` microseconds older than the one asked."""
        if lag == 0:
            return self._tie[asked]
        first = self._start[asked]
        now = self._key[asked]
        wide = np.uint64(min(lag, 2**64 - 1))
        older = np.flatnonzero(now - self._key[first] > wide)
        first[older] = np.searchsorted(self._key, now[older] - wide)  # what is looked for ascends, too: it is near
        return first

    def _recency(self, asked: Int64, of: Mask, start: Int64, until: Int64) -> Float64:
        last = np.full(len(of) + 1, -1)
        np.maximum.accumulate(np.where(of, np.arange(len(of)), -1), out=last[1:])
        found = last[until]
        seconds = (self._key[asked] - self._key[found]).astype(np.float64) / 1e6
        return np.where(found >= start, seconds, np.nan)

    def _distinct(self, codes: Int32, of: Mask, start: Int64, until: Int64) -> Float64:
        """How many distinct codes; a code stands in the windows from where one of its events comes in.

        Windows move forward only. So an event is in those of a run of the rows asked, and it stands for its code until
        it leaves, or until the code's next event comes in.
        """
        place = np.flatnonzero(of)
        entity, code = self._start[place], codes[place]
        order = np.lexsort((code, entity))
        place, entity, code = place[order], entity[order], code[order]
        enters = np.searchsorted(until, place, side="right")
        leaves = np.searchsorted(start, place, side="right")
        again = np.flatnonzero((entity[1:] == entity[:-1]) & (code[1:] == code[:-1]))
        leaves[again] = np.minimum(leaves[again], enters[again + 1])
        stays = leaves > enters
        change = np.bincount(enters[stays], minlength=len(start) + 1)
        change -= np.bincount(leaves[stays], minlength=len(start) + 1)
        return np.cumsum(change[:-1]).astype(np.float64)


def _between(weights: Mask | Int64, start: Int64, until: Int64) -> Int64:
    total = np.zeros(len(weights) + 1, dtype=np.int64)
    np.cumsum(weights, out=total[1:])
    return np.asarray(total[until] - total[start])


def _sums(numbers: Float64, start: Int64, until: Int64) -> Float64:
    """Sums of runs, each of nothing but its own numbers: a difference of running sums would lose the small ones.

    A run is a power of two of numbers for each bit of its length.
    """
    total = np.zeros(len(start))
    at, left = start.copy(), until - start
    step, level = 1, numbers  # level[i] is the sum of numbers[i : i + step]
    longest = int(left.max(initial=0))
    with np.errstate(over="ignore", invalid="ignore"):
        while step <= longest:
            odd = np.flatnonzero(left & step)
            total[odd] += level[at[odd]]
            at[odd] += step
            level = level[:-step] + level[step:]
            step *= 2
    return total


def _ratio(above: Float64, below: Int64, prior: float, mean: float) -> Float64:
    if prior:
        return np.asarray((above + prior * mean) / (below + prior))
    found = np.full(len(above), np.nan)
    np.divide(above, below, out=found, where=below > 0)
    return found
