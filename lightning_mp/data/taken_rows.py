"""Some rows of a table, on disk where they are many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.table_spool import TableSpool


def taken_rows(table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """`table.take(places)`, a piece at a time; the table itself where each of its rows is taken once.

    Args:
        table: In memory, or mapped.
        places: (N,) rows, ascending; one may stand there several times.

    Example:
        >>> taken_rows(pa.table({"a": [5, 6, 7]}), np.array([0, 2]))["a"].to_pylist()
        [5, 7]
    """
    if not len(places):
        return table.slice(0, 0)
    if len(places) == table.num_rows and all(
        (places[piece] == np.arange(piece.start, piece.stop)).all() for piece in row_pieces(len(places))
    ):
        return table
    spool = TableSpool()
    for piece in row_pieces(len(places)):
        wanted = places[piece]
        some = table.slice(wanted[0], wanted[-1] - wanted[0] + 1)
        spool.add(some.take(pa.array(wanted - wanted[0])))
    return spool.table()
