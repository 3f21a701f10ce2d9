"""Which events are of one entity: a number for every combination of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.row_pieces import column_pieces
from lightning_mp.data.scratch_array import scratch_array

Codes = npt.NDArray[np.unsignedinteger[Any]]
_WIDEST: Final = 2**32
"""Range up to which whole numbers stand for themselves; columns that spread further are numbered by their values."""


def entity_codes(
    events: pa.Table, by: Sequence[str], *, allocate: Callable[..., npt.NDArray[Any]] = scratch_array
) -> tuple[Codes, int]:
    """Number the rows by their keys. A missing key is a key like any other.

    Args:
        events: The keys' columns, of any type.
        by: Their names.
        allocate: Makes an array of a shape and a type.

    Returns:
        (N,) uint32, or uint64 where that is too narrow: equal where all keys are; and a number above all of them.

    Example:
        >>> codes, size = entity_codes(pa.table({"user": [7, 7, 9], "page": ["a", None, "a"]}), ["user", "page"])
        >>> codes.tolist(), size
        ([4, 3, 10], 12)
    """
    codes, size = _column_codes(events[by[0]], allocate)
    for name in by[1:]:
        more, count = _column_codes(events[name], allocate)
        # Odd, so that the lowest bits of the product, by which the events are dealt out, depend on every key.
        count |= 1
        if size * count > 2**64:
            found, inverse = np.unique(codes, return_inverse=True)
            codes, size = inverse.astype(np.uint32), len(found)
        if size * count > 2**32 and codes.dtype != np.uint64:
            narrow, codes = codes, allocate(len(codes), np.uint64)
            codes[:] = narrow
        codes *= codes.dtype.type(count)
        codes += more
        size *= count
    return codes, size


def _column_codes(column: pa.ChunkedArray, allocate: Callable[..., npt.NDArray[Any]]) -> tuple[Codes, int]:
    """Numbers of one column's values from 1 on, 0 where there is none; and a number above all of them."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    low = high = 0
    if pa.types.is_integer(column.type):
        bounds = pc.min_max(column).as_py()
        low, high = bounds["min"] or 0, bounds["max"] or 0
    if not pa.types.is_integer(column.type) or high - low >= _WIDEST - 1 or high >= 2**63:
        numbers, words = column_codes(column)
        numbers += 1
        return numbers.view(np.uint32), len(words) + 1
    codes = allocate(len(column), np.uint32)
    for place, piece in column_pieces(column):
        here = codes[place]
        values = piece.fill_null(low) if piece.null_count else piece
        np.subtract(values.to_numpy(), low, out=here, dtype=np.int64, casting="unsafe")  # below 2**32: it fits
        here += np.uint32(1)
        if piece.null_count:
            here[piece.is_null().to_numpy(zero_copy_only=False)] = 0
    return codes, high - low + 2
