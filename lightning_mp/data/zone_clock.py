"""ZoneClock: a zone's wall clock for whole columns, daylight saving included, in any year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_DAY_US: Final = 86_400_000_000
_DATETIME_DAYS: Final = (-719_000, 2_932_000)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ZoneClock:
    """A zone's offsets round the given times, found by asking zoneinfo, not Arrow (which stops in 2037).

    Args:
        name: IANA name.
        times: UTC or wall-clock microseconds; `local` and `utc` may be asked for these and for times near by.

    Raises:
        ValueError: There is no such zone (or `zoneinfo.ZoneInfoNotFoundError`, a `KeyError`).

    Example:
        >>> winter = np.array([0])
        >>> ZoneClock("Europe/Berlin", winter).local(winter).tolist()
        [3600000000]
    """

    def __init__(self, name: str, times: Int64) -> None:
        zone = ZoneInfo(name)
        present = np.unique(times // _DAY_US)
        days = np.unique(np.clip(present[:, None] + np.arange(-3, 4), *_DATETIME_DAYS)).tolist()
        changes, offsets = [], [_offset(zone, days[0] * 86_400)]
        for before, day in pairwise(days):
            offset = _offset(zone, day * 86_400)
            if offset != offsets[-1]:
                # Nobody asks for times inside a gap, so it does not matter where in it the clock changed.
                changes.append(_change(zone, before * 86_400, day * 86_400) if day == before + 1 else day * 86_400)
                offsets.append(offset)
        self._changes = np.array(changes, dtype=np.int64) * 1_000_000
        self._offsets = np.array(offsets, dtype=np.int64) * 1_000_000

    def local(self, utc: Int64) -> Int64:
        """Wall clock at these UTC microseconds, as microseconds since 1970-01-01 00:00 of that clock."""
        return np.asarray(utc + self._offset_at(utc))

    def utc(self, local: Int64) -> tuple[Int64, Mask, Mask]:
        """UTC microseconds of wall-clock times.

        Returns:
            The instants; which times happen twice (the clock went back); which never happen (it went forward). Both
            kinds hold 0.
        """
        # The offset is the one of the day before or of the day after: the clock does not change twice in two days.
        before, after = self._offset_at(local - _DAY_US), self._offset_at(local + _DAY_US)
        fits_before = self._offset_at(local - before) == before
        fits_after = self._offset_at(local - after) == after
        twice = fits_before & fits_after & (before != after)
        never = ~fits_before & ~fits_after
        instants = np.where(fits_before, local - before, local - after)
        return np.where(twice | never, 0, instants), twice, never

    def _offset_at(self, utc: Int64) -> Int64:
        return np.asarray(self._offsets[np.searchsorted(self._changes, utc, side="right")])


def _offset(zone: ZoneInfo, second: int) -> int:
    offset = (_EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset()
    return round((offset or timedelta()).total_seconds())


def _change(zone: ZoneInfo, low: int, high: int) -> int:
    """The first second of the new offset, between a day of the old one and a day of the new one."""
    old = _offset(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == old else (low, middle)
    return high
