"""RowBlock: some rows on their way into a store, and how an error names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lightning_mp.errors import ConfigurationError, DataError, LightningMPError
from lightning_mp.schema import Feature

KEY_PREFIX = "@"
"""Of the key columns of a written table: `@time`, `@row`, `@user`, `@item`; a feature may be called `user`."""
ROWS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows on their way into a store, and how an error names them.

    Args:
        table: The rows.
        split: The split they belong to.
        first: Place of the first of them in the split.
        keep_nonfinite: Whether NaN and infinity are stored as they are.
        numbered_from: Row of the source that the split begins at, where the rows do not carry theirs.
    """

    table: pa.Table
    split: str
    first: int = 0
    keep_nonfinite: bool = False
    numbered_from: int = 0

    def source_row(self, position: int) -> str:
        """The row of the source where the rows carry it, else the place in the split."""
        if KEY_PREFIX + "row" not in self.table.column_names:
            return f"{self.first + position:,}"
        return f"{self.table.column(KEY_PREFIX + 'row')[position].as_py():,} of the source"

    def refuse(self, wrong: NDArray[np.bool_], values: NDArray[Any], feature: Feature, *, what: str, hint: str) -> None:
        """Raise where `wrong`, (N, width), holds anywhere.

        Raises:
            DataError: The feature, the first wrong value, its row and the number of others are named.
        """
        if not wrong.any():
            return
        first, column = (int(i) for i in np.argwhere(wrong)[0])
        where = f"row {self.source_row(first)} ({self.split} rows)"
        name = feature.name if feature.width == 1 else f"{feature.name}[{column}]"
        more = int(wrong.sum()) - 1
        others = f", and {more:,} more" if more else ""
        raise DataError(f"feature `{name}` has {values[first, column]:.9g} at {where}{others}: it {what}", hint)


def row_blocks(source: Any, split: str, *, keep_nonfinite: bool = False, numbered_from: int = 0) -> Iterator[RowBlock]:
    """Rows of a table or of a stream, a block at a time.

    Args:
        source: A `pyarrow.Table`, or anything with `__arrow_c_stream__`: a `pyarrow.RecordBatchReader`, a frame of
            polars or pandas, a DuckDB relation. A stream is read once and never held whole.
        split: For the errors.
        keep_nonfinite: Whether NaN and infinity are stored as they are.
        numbered_from: Row of the source that the split begins at, where the rows do not carry theirs.

    Raises:
        ConfigurationError: It is none of these.
        DataError: The stream broke off.
    """
    if not isinstance(source, pa.Table):
        if not hasattr(source, "__arrow_c_stream__"):
            problem = f"the {split} rows are a `{type(source).__name__}`, which is no table and no Arrow stream"
            raise ConfigurationError(problem, "give a pyarrow Table, a RecordBatchReader, or a frame")
        source = pa.RecordBatchReader.from_stream(source)
    first = 0
    try:
        batches = source.to_batches(max_chunksize=ROWS) if isinstance(source, pa.Table) else source
        for batch in batches:
            for start in range(0, max(batch.num_rows, 1), ROWS):
                part = batch.slice(start, ROWS)
                yield RowBlock(pa.Table.from_batches([part]), split, first, keep_nonfinite, numbered_from)
                first += part.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, LightningMPError):
            raise
        raise DataError(f"the stream of {split} rows broke off after {first:,} rows: {error}", "check it") from error
    if first == 0:
        empty = source.schema.empty_table()
        yield RowBlock(empty, split, 0, keep_nonfinite)
