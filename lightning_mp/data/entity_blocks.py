"""Events in the order of entity and time, some entities at a time: few enough for the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.entity_codes import Codes

Int64 = npt.NDArray[np.int64]
_ROWS: Final = 1 << 15
"""In a block, or down to half as many: what is worked on then stays in the second-level cache."""
_DIGIT: Final = 16
"""Bits by which is sorted at once: NumPy's stable sort of 16 bits is a radix sort."""


def entity_blocks(
    codes: Codes, size: int, time: Int64, *, rows_at_once: int | None = None
) -> Iterator[tuple[Int64, Int64]]:
    """Deal the events out into blocks by the lowest bits of their entity's number, and sort each block.

    Args:
        codes: (N,) number of each event's entity.
        size: A number above all of them.
        time: (N,) int64 microseconds.
        rows_at_once: How many rows are dealt out at once, which takes 25 bytes a row; all of them when left out.
            The events of one entity are never parted.

    Yields:
        (M,) rows of whole entities, those of one entity together and in the order of time; and where in them each
        entity begins. There are never so many entities that their number and a span of time do not fit in 64 bits.

    Example:
        >>> rows, starts = next(entity_blocks(np.array([3, 1, 3], dtype=np.uint32), 4, np.array([20, 10, 10])))
        >>> rows.tolist(), starts.tolist()
        ([1, 2, 0], [0, 1])
    """
    if not len(codes):
        return
    bits = min((len(codes) // _ROWS).bit_length(), size.bit_length(), _DIGIT)
    parts: Codes = np.empty(len(codes), dtype=np.uint8 if bits <= 8 else np.uint16)
    np.bitwise_and(codes, codes.dtype.type((1 << bits) - 1), out=parts, casting="unsafe")
    lengths = np.zeros(1 << bits, dtype=np.int64)
    for first in range(0, len(parts), 1 << 20):  # `bincount` widens what it counts to 64 bits
        lengths += np.bincount(parts[first : first + (1 << 20)], minlength=1 << bits)
    in_order = bool((time[1:] >= time[:-1]).all())
    most_entities = 1 << (64 - (int(time.max()) - int(time.min())).bit_length())
    begin = 0
    while begin < len(lengths):
        held = np.searchsorted(np.cumsum(lengths[begin:]), rows_at_once or len(codes), side="right")
        end = begin + max(int(held), 1)
        rows = _dealt(parts, begin, end, everything=end - begin == len(lengths))
        for last, length in zip(np.cumsum(lengths[begin:end]).tolist(), lengths[begin:end].tolist(), strict=True):
            if length:
                block, starts = _sorted(rows[last - length : last], codes, bits, size, None if in_order else time)
                yield from _cut(block, starts, most_entities)
        begin = end


def _dealt(parts: Codes, begin: int, end: int, *, everything: bool) -> Int64:
    """Rows of some parts, part by part, each in the order of the rows."""
    if everything:
        return np.argsort(parts, kind="stable")
    chosen = np.flatnonzero((parts >= begin) & (parts < end))
    return chosen[np.argsort(parts[chosen], kind="stable")]


def _sorted(rows: Int64, codes: Codes, bits: int, size: int, time: Int64 | None) -> tuple[Int64, Int64]:
    """The rows of one part by entity and time, where each entity begins; `time` where the rows are out of order."""
    if time is not None:
        rows = rows[np.argsort(time[rows], kind="stable")]
    entity = codes[rows] >> codes.dtype.type(bits)  # what is shifted out is the same in all of them
    for shift in range(0, max((size >> bits).bit_length(), 1), _DIGIT):
        order = np.argsort((entity >> entity.dtype.type(shift)).astype(np.uint16), kind="stable")
        rows, entity = rows[order], entity[order]
    return rows, np.concatenate([[0], np.flatnonzero(entity[1:] != entity[:-1]) + 1])


def _cut(rows: Int64, starts: Int64, most_entities: int) -> Iterator[tuple[Int64, Int64]]:
    for first in range(0, len(starts), most_entities):
        here = starts[first : first + most_entities]
        end = starts[first + most_entities] if first + most_entities < len(starts) else len(rows)
        yield rows[here[0] : end], here - here[0]
