"""Times of events: whatever a log writes, as int64 UTC microseconds, or a stated reason why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.iso_time import to_microseconds
from lightning_mp.data.rejects import positions
from lightning_mp.data.zone_clock import ZoneClock
from lightning_mp.errors import DataError

Mask = npt.NDArray[np.bool_]
_EPOCHS: Final = (
    ("epoch seconds", 0.0, 1e11, 1_000_000, 1),
    ("epoch milliseconds", 1e11, 1e14, 1_000, 1),
    ("epoch microseconds", 1e14, 1e17, 1, 1),
    ("epoch nanoseconds", 1e17, 1e19, 1, 1_000),
)
"""Name, from, until, microseconds a unit, units a microsecond. The ranges hold the years 1973 to 5138 of each unit."""
_CLOCK: Final = r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?"
_NUMERIC: Final = r"^[+-]?\d+(?:\.\d*)?$"
_ZONED: Final = rf"^{_CLOCK} ?(?:[Zz]|UTC|GMT|[+-]\d{{2}}(?::?\d{{2}})?)$"
_NAMED: Final = rf"^{_CLOCK} [A-Za-z_]+/[A-Za-z0-9_/+-]+$"
_NAIVE: Final = rf"^(?:{_CLOCK}|\d{{4}}-\d{{2}}-\d{{2}})$"
NO_ZONE: Final = "names no time zone, and none is declared"


@dataclass(frozen=True, slots=True)
class Times:
    """Times of some rows.

    Attributes:
        microseconds: (N,) int64 UTC; 0 where there is none.
        missing: (N,) rows without a time.
        wrong: Rows whose time cannot be told, by reason.
        formats: Rows by the way their time was written.
    """

    microseconds: npt.NDArray[np.int64]
    missing: Mask
    wrong: Mapping[str, Mask] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)


def event_times(values: pa.Array, *, column: str, time_zone: str | None = None) -> Times:
    """Read times row by row, so that a column may mix ways of writing them.

    Numbers are epochs, their unit told from their size: below 1e11 seconds, below 1e14 milliseconds, below 1e17
    microseconds, else nanoseconds. ISO text may end in `Z`, ` UTC`, an offset, or the name of a zone. Text or a
    timestamp without a zone is read in `time_zone`. Digits below the microsecond are cut off. A local time that
    happens twice or never (daylight saving) is wrong.

    Args:
        values: (N,) text, numbers, timestamps or dates.
        column: Name in the file, for errors.
        time_zone: IANA name of the zone of times written without one.

    Raises:
        DataError: The column is of a type that holds no times, or holds timestamps without a zone and none is declared.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    missing = positions(pc.is_null(values))
    gathered = _Gathered(len(values), time_zone)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        _texts(values.cast(pa.string()), gathered)
    elif pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
        missing |= positions(pc.is_nan(values)) if pa.types.is_floating(values.type) else False
        gathered.epochs(values, ~missing)
    elif pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        _timestamps(values, column, gathered)
    elif not pa.types.is_null(values.type):
        raise DataError(
            f"column `{column}` holds {values.type}, which is no time", "map a time column in `columns.time`"
        )
    return Times(gathered.microseconds, missing, gathered.wrong, gathered.formats)


class _Gathered:
    def __init__(self, rows: int, time_zone: str | None) -> None:
        self.microseconds = np.zeros(rows, dtype=np.int64)
        self.time_zone = time_zone
        self.wrong: dict[str, Mask] = {}
        self.formats: Counter[str] = Counter()

    def mark(self, mask: Mask, reason: str) -> None:
        if mask.any():
            self.wrong[reason] = self.wrong.get(reason, np.zeros_like(mask)) | mask

    def epochs(self, numbers: pa.Array, where: Mask) -> None:
        whole = pa.types.is_integer(numbers.type)
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        size = np.abs(values.astype(np.float64))
        for name, low, high, factor, divisor in _EPOCHS:
            here = where & (size >= low) & (size < high)
            if here.any():
                exact = values[here].astype(np.int64) * factor // divisor if whole else None
                rounded = exact if exact is not None else np.round(values[here].astype(np.float64) * factor / divisor)
                self.microseconds[here] = rounded.astype(np.int64)
                self.formats[name] += int(here.sum())
        self.mark(where & ~(size < 1e19), "is no epoch in any unit")

    def local(self, naive: pa.Array, where: Mask, zone: str) -> None:
        """Times of a zone's clock; `naive` holds timestamps at `where`, elsewhere nulls."""
        here = where & positions(pc.is_valid(naive))
        if not here.any():
            return
        clock = _ticks(naive)[here]
        try:
            instants, twice, never = ZoneClock(zone, clock).utc(clock)
        except (ValueError, KeyError, OSError):
            self.mark(where, f"is in the zone {zone}, which does not exist")
            return
        for mask, reason in (
            (twice, f"happens twice in {zone}: the clocks went back"),
            (never, f"does not exist in {zone}: the clocks went forward"),
        ):
            marked = np.zeros_like(where)
            marked[here] = mask
            self.mark(marked, reason)
        self.microseconds[here] = instants
        self.formats[f"in {zone}"] += int(np.count_nonzero(~twice & ~never))

    def instants(self, stamps: pa.Array, where: Mask, name: str) -> None:
        found = positions(pc.is_valid(stamps)) & where
        self.microseconds[found] = _ticks(stamps)[found]
        if found.any():
            self.formats[name] += int(found.sum())


def _texts(values: pa.Array, gathered: _Gathered) -> None:
    texts = pc.utf8_trim_whitespace(values)
    rest = positions(pc.is_valid(texts))

    def matching(pattern: str) -> Mask:
        nonlocal rest
        if not rest.any():
            return rest
        mask = rest & positions(pc.match_substring_regex(texts, pattern))
        rest = rest & ~mask
        return mask

    zoned, numeric, naive, named = (matching(pattern) for pattern in (_ZONED, _NUMERIC, _NAIVE, _NAMED))
    gathered.mark(rest, "is not a time (ISO text or an epoch)")
    if numeric.any():
        kind = pa.int64() if not positions(pc.match_substring(texts, ".")).any() else pa.float64()
        short = numeric & (_length(texts) < 32)
        gathered.mark(numeric & ~short, "is no epoch in any unit")
        gathered.epochs(_cast_numbers(_only(texts, short), kind), short)
    if zoned.any():
        clean = pc.replace_substring_regex(_only(texts, zoned), r" ?(?:[Zz]|UTC|GMT)$", "Z")
        clean = pc.replace_substring_regex(clean, r" ([+-][\d:]+)$", r"\1")
        stamps = _stamps(clean, gathered, zoned, "UTC")
        gathered.instants(stamps, zoned, "ISO with zone")
    if naive.any():
        if gathered.time_zone is None:
            gathered.mark(naive, NO_ZONE)
        else:
            gathered.local(_stamps(_only(texts, naive), gathered, naive, None), naive, gathered.time_zone)
    if named.any():
        zones = pc.replace_substring_regex(_only(texts, named), r"^.* ", "")
        for zone in pc.unique(zones).drop_null().to_pylist():
            here = named & positions(pc.equal(zones, zone))
            clock = pc.replace_substring_regex(_only(texts, here), r" [^ ]+$", "")
            gathered.local(_stamps(clock, gathered, here, None), here, zone)


def _timestamps(values: pa.Array, column: str, gathered: _Gathered) -> None:
    where = positions(pc.is_valid(values))
    zone = getattr(values.type, "tz", None)
    stamps = values.cast(pa.timestamp("us", tz=zone), safe=False)
    if zone is not None:
        gathered.instants(stamps, where, "timestamp with zone")
    elif gathered.time_zone is None:
        problem = f"column `{column}` holds {values.type} without a time zone, and none is declared"
        raise DataError(problem, "declare it with `columns.time_zone`, as in `time_zone: UTC`")
    else:
        gathered.local(stamps, where, gathered.time_zone)


def _ticks(stamps: pa.Array) -> npt.NDArray[np.int64]:
    ticks: npt.NDArray[np.int64] = stamps.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return ticks


def _only(texts: pa.Array, where: Mask) -> pa.Array:
    return texts if where.all() else pc.if_else(pa.array(where), texts, None)


def _length(texts: pa.Array) -> npt.NDArray[np.int32]:
    lengths: npt.NDArray[np.int32] = pc.fill_null(pc.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
    return lengths


def _cast_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return pc.replace_substring_regex(texts, r"^\+", "").cast(kind)
    except pa.ArrowInvalid:  # an integer beyond int64: no epoch in any unit
        return texts.cast(pa.float64())


def _stamps(texts: pa.Array, gathered: _Gathered, where: Mask, zone: str | None) -> pa.Array:
    """ISO text, already of the right form, as microseconds; what is no day or hour is marked and null."""
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    kind = pa.timestamp("us", tz=zone)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        stamps = pa.array([_stamp(text) for text in texts.to_pylist()], type=pa.int64()).cast(kind)
        gathered.mark(where & positions(pc.is_null(stamps)), "is a day or an hour that does not exist")
        return stamps


def _stamp(text: str | None) -> int | None:
    try:
        return None if text is None else to_microseconds(re.sub("[Zz]$", "+00:00", text))
    except ValueError:
        return None
