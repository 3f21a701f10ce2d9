"""How many rows of a log repeat an earlier one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.row_pieces import column_array, row_pieces
from lightning_mp.data.scratch_array import scratch_array

Int64 = npt.NDArray[np.int64]


def repeated_rows(table: pa.Table, user: Int64, item: Int64, time: Int64) -> int:
    """Rows that repeat an earlier one, told by a 64-bit hash of user, item, time, kind and value.

    Args:
        table: Of the log.
        user: (N,) codes.
        item: (N,) codes.
        time: (N,) UTC microseconds.

    Example:
        >>> log = pa.table({"event": ["view", "view", "click"]})
        >>> same = np.zeros(3, dtype=np.int64)
        >>> repeated_rows(log, same, same, same)
        1
    """
    columns = [item, time, *(_numbers(table, name) for name in table.column_names if _tells(table, name))]
    hashed = scratch_array(len(user), np.uint64)
    for piece in row_pieces(len(user)):
        mixed = user[piece].astype(np.uint64)
        for values in columns:
            mixed *= np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            mixed += values[piece].astype(np.uint64)
        hashed[piece] = mixed * np.uint64(0xBF58476D1CE4E5B9)
    hashed.sort()
    return sum(
        int(
            np.count_nonzero(hashed[piece.start + 1 : piece.stop + 1] == hashed[piece][: len(hashed) - 1 - piece.start])
        )
        for piece in row_pieces(len(hashed))
    )


def _tells(table: pa.Table, name: str) -> bool:
    return name in ("event", "value") or pa.types.is_boolean(table.schema.field(name).type)


def _numbers(table: pa.Table, name: str) -> npt.NDArray[np.integer]:
    """Numbers that are equal where the values are."""
    kind = table.schema.field(name).type
    if pa.types.is_floating(kind):
        return column_array(table[name], np.float64).view(np.uint64)
    return column_codes(table[name])[0]
