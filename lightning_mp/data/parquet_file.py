"""ParquetFile: the columns of a Parquet file with their own types, in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from lightning_mp.data.block import Block
from lightning_mp.errors import DataError

_BATCH_ROWS: Final = 1 << 18


@dataclass(slots=True)
class ParquetFile:
    """A Parquet file, read batch by batch.

    Args:
        path: A file that can be read.

    Attributes:
        header: Names of its columns.
        rows_seen: Rows met by `blocks` so far.

    Raises:
        DataError: It is cut short or damaged.
    """

    path: Path
    header: tuple[str, ...] = ()
    rows_seen: int = 0
    _file: parquet.ParquetFile = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._file = parquet.ParquetFile(self.path)
            self.header = tuple(self._file.schema_arrow.names)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error

    @property
    def delimiter(self) -> None:
        """None: a Parquet file is not cut."""
        return

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """Read some columns.

        Args:
            names: Columns that stand in the header once.

        Yields:
            Columns in the file's types.

        Raises:
            DataError: A page is damaged.
        """
        total = max(self._file.metadata.num_rows, 1)
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(names))):
                rows = self.rows_seen + np.arange(batch.num_rows, dtype=np.int64)
                self.rows_seen += batch.num_rows
                columns = {name: batch.column(name) for name in names}
                yield Block(rows=rows, lines=rows + 1, columns=columns, done=self.rows_seen / total)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        reason = str(error).splitlines()[0][:200]
        return DataError(f"`{self.path}` cannot be read as Parquet: {reason}", "write or copy it again")
