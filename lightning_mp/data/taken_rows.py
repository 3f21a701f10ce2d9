"""Some rows of a table, on disk where they are many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.table_spool import TableSpool


def taken_rows(table: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """`table.take(places)`, a piece at a time; the table itself where all its rows are taken.

    Args:
        table: In memory, or mapped.
        places: (N,) rows, ascending.

    Example:
        >>> taken_rows(pa.table({"a": [5, 6, 7]}), np.array([0, 2]))["a"].to_pylist()
        [5, 7]
    """
    if len(places) in (0, table.num_rows):
        return table.slice(0, len(places))
    spool = TableSpool()
    for piece in row_pieces(len(places)):
        wanted = places[piece]
        some = table.slice(wanted[0], wanted[-1] - wanted[0] + 1)
        spool.add(some.take(pa.array(wanted - wanted[0])))
    return spool.table()
