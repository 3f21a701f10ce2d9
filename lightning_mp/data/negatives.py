"""Negatives: rows for logs that hold what was taken and not what was shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lightning_mp.data.chosen_rows import chosen_places, chosen_rows
from lightning_mp.data.durations import duration_us
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.errors import ConfigurationError, DataError

Int64 = npt.NDArray[np.int64]
_EPOCH_MONDAY_US: Final = 4 * 86_400_000_000
"""1970-01-05: weeks start on Mondays."""
_TRIES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Negatives:
    """Draws items that a user did not take, beside each item that was taken.

    A negative stands at the user and the time of its positive and is drawn among the items that had an event in the
    same period, those of the same basket left out. Drawn uniformly, popular items are more often positives than
    negatives: the model learns popularity, and is good at it. Weighted by popularity they are equally often both, and
    the model learns what is particular to a user; its scores then say nothing about how often an item is taken.

    Args:
        per_positive: How many for each positive.
        basket: Column of the log that says what was taken together; `session` where sessions are made. Left out: the
            user's events of one time.
        available: Period in which an item must have had an event, counted from Monday 1970-01-05.
        weighting: `uniform`, or `popularity`: in proportion to the item's events of the period.
        seed: With the row of the positive it gives the draw, whatever other rows there are.

    Raises:
        ConfigurationError: A number that cannot be.
    """

    per_positive: int = 4
    basket: str | None = None
    available: str = "7d"
    weighting: Literal["uniform", "popularity"] = "uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.per_positive < 1:
            raise ConfigurationError(f"`negatives.per_positive` must be at least 1, got {self.per_positive}", "use 4")
        if duration_us(self.available, name="negatives.available") == 0:
            raise ConfigurationError("`negatives.available` must be longer than 0", "use 7d")

    def draw(self, row: Int64, item: Int64, time: Int64, basket: Int64) -> tuple[Int64, Int64]:
        """Draw negatives for the positives of a log.

        Args:
            row: (N,) row of each in the source; with the seed it gives the draw.
            item: (N,) codes from 0 on.
            time: (N,) UTC microseconds.
            basket: (N,) codes from 0 on of what was taken together.

        Returns:
            (M,) positions of the positives, ascending, each up to `per_positive` times; (M,) items. A positive gets
            fewer where its period has not enough other items.

        Raises:
            DataError: There is no period with two items.
        """
        length, width = duration_us(self.available, name="negatives.available"), int(item.max()) + 1
        period, taken = scratch_array(len(time), np.int64), scratch_array(len(time), np.int64)
        for piece in row_pieces(len(time)):
            period[piece] = (time[piece] - _EPOCH_MONDAY_US) // length
            taken[piece] = basket[piece] * width + item[piece]
        taken.sort()
        found = scratch_array((len(time), self.per_positive), np.int64)
        for place in sorted(
            {number for piece in row_pieces(len(period)) for number in np.unique(period[piece]).tolist()}
        ):
            inside = chosen_places(period == place)
            counts = np.zeros(width, dtype=np.int64)
            for piece in row_pieces(len(inside)):
                counts += np.bincount(item[inside[piece]], minlength=width)
            choices = np.flatnonzero(counts)
            upto = np.cumsum(counts[choices] if self.weighting == "popularity" else np.ones_like(choices))
            for piece in row_pieces(len(inside)):
                rows = inside[piece]
                found[rows] = self._of_period(row[rows], basket[rows], choices, upto=upto, taken=taken, width=width)
        flat = found.reshape(-1)
        where, what = chosen_places(flat >= 0), chosen_rows(flat, flat >= 0)
        if not len(where):
            raise DataError("no negative can be drawn: no period has an item outside the baskets", "widen `available`")
        where //= self.per_positive
        return where, what

    def _of_period(self, row: Int64, basket: Int64, choices: Int64, *, upto: Int64, taken: Int64, width: int) -> Int64:
        """(n, per_positive) items; -1 where too few were found."""
        found = np.full((len(row), self.per_positive), -1, dtype=np.int64)
        filled = np.zeros(len(row), dtype=np.int64)
        for attempt in range(_TRIES):
            lacking = np.flatnonzero(filled < self.per_positive)
            if not len(lacking):
                break
            drawn = choices[np.searchsorted(upto, _uniform(self.seed, row[lacking], attempt) * upto[-1], side="right")]
            keys = basket[lacking] * width + drawn
            places = np.minimum(np.searchsorted(taken, keys), len(taken) - 1)
            good = (taken[places] != keys) & ~(found[lacking] == drawn[:, None]).any(axis=1)
            hit = lacking[good]
            found[hit, filled[hit]] = drawn[good]
            filled[hit] += 1
        return found


def _uniform(seed: int, row: Int64, attempt: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) by row: splitmix64 of seed, row and attempt, so that no row depends on another.

    Source:
        Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
    """
    with np.errstate(over="ignore"):
        state = row.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = _mixed(state + np.uint64(seed % 2**64))
        state = _mixed(state + np.uint64(attempt + 1) * np.uint64(0x9E3779B97F4A7C15))
    return np.asarray((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(state ^ (state >> np.uint64(31)))
