"""Marks of rows: with or without the label, in the first or the last part of the time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.audit.column_pass import audited_as, numbers_of
from lightning_mp.data.audit.distinct_sketch import mixed
from lightning_mp.data.audit.source import AuditSource
from lightning_mp.errors import ConfigurationError, DataError

Marks = npt.NDArray[np.int8]
_TIMES: Final = 1 << 16
"""Times that the quarters are found among, when there are more rows."""


def label_marks(column: pa.Array, at_least: float | None, source: AuditSource) -> Marks:
    """Which rows have the label.

    Args:
        column: (N,) numbers or flags; in a CSV file their texts.
        at_least: From where on the label is given; `None` for above 0.
        source: The column's.

    Returns:
        (N,) 1 with it, 0 without, -1 where it is missing.

    Raises:
        ConfigurationError: The column holds neither numbers nor flags.
    """
    if source.untyped:
        from lightning_mp.data.typed_text import to_bool, to_double

        numbers = to_double(column, source.decimal).values
        column = numbers if numbers.null_count < len(column) or not len(column) else to_bool(column).values
    if audited_as(column.type) != "number" or pa.types.is_fixed_size_list(column.type):
        problem = f"the label's column holds {column.type}, which is neither numbers nor flags"
        raise ConfigurationError(problem, "name a column of numbers or flags")
    values, valid = numbers_of(column)
    given = values >= at_least if at_least is not None else values > 0
    marks = np.where(np.isnan(values), -1, given) if values.dtype.kind == "f" else given
    if valid is None:
        return marks.astype(np.int8)
    spread = np.full(len(valid), -1, dtype=np.int8)
    spread[valid] = marks
    return spread


def time_limits(source: AuditSource, place: int) -> tuple[int, int]:
    """Where the first quarter of the rows by time ends and the last one begins, in UTC microseconds.

    Found among 65,536 rows chosen by a hash, where there are more.

    Args:
        source: What is audited.
        place: Of the column of times.

    Raises:
        DataError: There is no time in it.
    """
    name = source.fields[place][0]
    kept = np.empty(0, dtype=np.int64)
    hashes = np.empty(0, dtype=np.uint64)
    rows = 0
    for columns, count, _ in source.read([place]):
        times, there = _times(columns[0], name)
        here = mixed(np.arange(rows, rows + count, dtype=np.uint64))[there]
        rows += count
        kept, hashes = np.concatenate([kept, times[there]]), np.concatenate([hashes, here])
        if len(kept) > _TIMES:
            order = np.argpartition(hashes, _TIMES)[:_TIMES]
            kept, hashes = kept[order], hashes[order]
    if not len(kept):
        raise DataError(f"column `{name}` of `{source.name}` holds no time that can be read", "name another `time`")
    first, last = np.quantile(kept, (0.25, 0.75), method="inverted_cdf").tolist()
    return int(first), int(last)


def part_marks(column: pa.Array, limits: tuple[int, int], name: str) -> Marks:
    """Which rows lie in the first and which in the last quarter of the time.

    Args:
        column: (N,) times.
        limits: As `time_limits` found them.
        name: Of the column.

    Returns:
        (N,) 0 in the first quarter, 1 in the last, -1 between or without a time.
    """
    times, there = _times(column, name)
    marks = np.full(len(times), -1, dtype=np.int8)
    marks[there & (times > limits[1])] = 1
    marks[there & (times <= limits[0])] = 0
    return marks


def _times(column: pa.Array, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    from lightning_mp.data.event_times import event_times

    found = event_times(column, column=name, time_zone="UTC")
    there = ~found.missing
    for mask in found.wrong.values():
        there &= ~mask
    return found.microseconds, there
