"""TableSpool: gathers tables in memory, and on disk once they are many."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

IN_MEMORY: Final = 1 << 28
"""Bytes that are kept in memory; what comes after lies in a temporary file, mapped."""


@dataclass(slots=True)
class TableSpool:
    """Gathers tables of one schema.

    Args:
        in_memory: Bytes up to which nothing is written.

    Attributes:
        on_disk: Whether a file was begun.
    """

    in_memory: int = IN_MEMORY
    on_disk: bool = False
    _tables: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _file: Any = None
    _writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Add one table."""
        if not table.num_rows and self._tables:
            return
        if self._writer is None:
            self._tables.append(table)
            self._bytes += table.nbytes
            if self._bytes > self.in_memory:
                self._begin()
        else:
            self._writer.write_table(table)

    def table(self) -> pa.Table:
        """All of it, in one; columns in several chunks. The file goes when the table does."""
        if self._writer is None:
            return pa.concat_tables(self._tables)
        self._writer.close()
        self._file.flush()
        # The name goes at once and the bytes with the last map of them, whatever ends the process.
        mapped = pa.memory_map(self._file.name)
        Path(self._file.name).unlink()
        self._file.close()
        return pa.ipc.open_file(mapped).read_all()

    def _begin(self) -> None:
        self.on_disk = True
        self._file = tempfile.NamedTemporaryFile(prefix="lightning-mp-", suffix=".arrow", delete=False)  # noqa: SIM115  # closed where it is read back
        self._writer = pa.ipc.new_file(self._file, self._tables[0].schema)
        for table in self._tables:
            self._writer.write_table(table)
        self._tables = []
