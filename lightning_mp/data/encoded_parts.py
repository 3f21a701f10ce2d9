"""The rows of each part as streams for a store's writer, which never holds them whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.feature_columns import FeatureColumn
from lightning_mp.data.labelled_rows import LabelledRows
from lightning_mp.data.log_rows import LogRows
from lightning_mp.data.row_pieces import ROWS, column_array, row_pieces
from lightning_mp.data.store.matrices import fixed_size_lists
from lightning_mp.data.time_split import PARTS

Int64 = npt.NDArray[np.int64]


def encoded_parts(
    made: Sequence[FeatureColumn], rows: LogRows, labelled: LabelledRows
) -> dict[str, pa.RecordBatchReader]:
    """Streams of the parts that have rows, as `FeatureStore.write` takes them.

    Args:
        made: The features.
        rows: The log.
        labelled: Its labelled rows.
    """
    number = column_array(rows.log.table["row"], np.int64)

    def batch(places: Int64) -> pa.RecordBatch:
        columns: dict[str, npt.NDArray[Any]] = {column.feature.name: column.values[places] for column in made}
        columns |= {name: labels[places] for name, labels in labelled.columns.items()}
        events = labelled.positions[places]
        columns |= {"@time": rows.time[events], "@row": number[events],
                    "@user": rows.user[events], "@item": rows.item[events]}  # fmt: skip
        arrays = [pa.array(v) if v.ndim == 1 else fixed_size_lists(v) for v in columns.values()]
        return pa.record_batch(arrays, names=list(columns))

    schema = batch(np.zeros(0, dtype=np.int64)).schema
    return {
        name: pa.RecordBatchReader.from_batches(schema, map(batch, _places(labelled.parts, part)))
        for part, name in enumerate(PARTS)
        if (labelled.parts == part).any()
    }


def _places(parts: npt.NDArray[np.int8], part: int) -> Iterator[Int64]:
    """The rows of a part, as many at a time as the writer takes at once."""
    waiting = np.zeros(0, dtype=np.int64)
    for piece in row_pieces(len(parts)):
        waiting = np.concatenate([waiting, piece.start + np.flatnonzero(parts[piece] == part)])
        if len(waiting) >= ROWS:
            yield waiting[:ROWS]
            waiting = waiting[ROWS:]
    if len(waiting):
        yield waiting
