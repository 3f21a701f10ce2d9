"""The rows of a log that have the keys of a few of its rows: all that their histories can be made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.chosen_rows import chosen_places
from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.taken_rows import taken_rows

Int64 = npt.NDArray[np.int64]
_AT_ONCE: Final = 1 << 20
"""Rows of a table, about; a key with more of them has a table of its own."""


def rows_of_keys(events: pa.Table, by: Sequence[str], asked: Int64) -> Iterator[tuple[pa.Table, list[tuple[int, int]]]]:
    """Tables of the rows that agree with some of the asked rows in all keys.

    Args:
        events: All rows.
        by: The keys' columns; a missing key is a key like any other.
        asked: (M,) rows.

    Yields:
        A table, its rows in their order, and which of the asked rows are asked of it: their place in `asked`, and
        their row in the table. Each is asked once.

    Example:
        >>> events = pa.table({"user": [7, 8, 7, 9]})
        >>> [(few["user"].to_pylist(), places) for few, places in rows_of_keys(events, ["user"], np.array([2, 3]))]
        [([7, 7, 9], [(0, 1), (1, 2)])]
    """
    if not len(asked):
        return
    group, count = scratch_array(events.num_rows, np.int32), 1
    group.fill(0)
    for name in by:
        codes, words = column_codes(events[name])
        width = len(words) + 1
        keys = np.unique(group[asked].astype(np.int64) * width + codes[asked] + 1)
        for piece in row_pieces(len(group)):
            numbers = group[piece].astype(np.int64) * width + codes[piece] + 1
            found = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
            group[piece] = np.where(keys[found] == numbers, found, -1)
        count = len(keys)
    size = np.zeros(count, dtype=np.int64)
    for piece in row_pieces(len(group)):
        size += np.bincount(group[piece][group[piece] >= 0], minlength=count)
    table_of = np.cumsum(size) // _AT_ONCE
    for number in np.unique(table_of).tolist():
        inside = np.append(table_of == number, False)  # the place behind the last one is that of no group
        mask = scratch_array(len(group), np.bool_)
        for piece in row_pieces(len(group)):
            mask[piece] = inside[group[piece]]
        rows = chosen_places(mask)
        mine = np.flatnonzero(inside[group[asked]])
        at = np.searchsorted(rows, asked[mine])
        yield taken_rows(events, rows), list(zip(mine.tolist(), at.tolist(), strict=True))
