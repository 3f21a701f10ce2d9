"""Whole columns a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt

from lightning_mp.data.scratch_array import scratch_array

if TYPE_CHECKING:  # transforms go through rows in pieces too, and know nothing of Arrow
    import pyarrow as pa

ROWS: Final = 1 << 17
"""Rows of a piece: what is made of them stays small, and the steps between them few."""


def row_pieces(count: int, rows: int = ROWS) -> Iterator[slice]:
    """The places of `count` rows, a piece after the other.

    Args:
        count: Rows in all.
        rows: Of a piece.

    Example:
        >>> [(piece.start, piece.stop) for piece in row_pieces(5, rows=2)]
        [(0, 2), (2, 4), (4, 5)]
    """
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def column_pieces(column: pa.ChunkedArray, rows: int = ROWS) -> Iterator[tuple[slice, pa.Array]]:
    """The pieces of an Arrow column with their places, none across two of its chunks.

    Args:
        column: (N,).
        rows: Of a piece at most.
    """
    at = 0
    for chunk in column.chunks:
        for piece in row_pieces(len(chunk), rows):
            yield slice(at + piece.start, at + piece.stop), chunk.slice(piece.start, piece.stop - piece.start)
        at += len(chunk)


def column_array(column: pa.ChunkedArray, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An Arrow column of numbers or flags as a NumPy array of its own; a missing number is NaN.

    Args:
        column: (N,).
        dtype: Of the array.
    """
    made = scratch_array(len(column), dtype)
    for place, piece in column_pieces(column):
        made[place] = piece.to_numpy(zero_copy_only=False)
    return made
