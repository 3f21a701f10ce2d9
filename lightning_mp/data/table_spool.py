"""TableSpool: gathers tables in memory, and on disk once they are many."""

from __future__ import annotations

import mmap
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from lightning_mp.data.no_room import no_room
from lightning_mp.errors import ArtifactError

IN_MEMORY: Final = 1 << 26
"""Bytes that are kept in memory; what comes after lies in a temporary file, mapped."""


@dataclass(slots=True)
class TableSpool:
    """Gathers tables of one schema.

    The file has no name: whatever ends the process, nothing of it stays.

    Attributes:
        on_disk: Whether a file was begun.
    """

    on_disk: bool = False
    _tables: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _file: Any = None
    _writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Add one table.

        Raises:
            ArtifactError: The disk of the temporary folder is full.
        """
        if not table.num_rows and self._tables:
            return
        if self._writer is None:
            self._tables.append(table)
            self._bytes += table.nbytes
            if self._bytes <= IN_MEMORY:
                return
            tables, self._tables = self._tables, []
        else:
            tables = [table]
        try:
            if self._writer is None:
                self.on_disk = True
                self._file = tempfile.TemporaryFile(prefix="lightning-mp-")  # noqa: SIM115  # closed where it is mapped
                self._writer = pa.ipc.new_file(self._file, table.schema)
            for one in tables:
                self._writer.write_table(one)
        except OSError as error:
            raise self._full(error) from error

    def table(self) -> pa.Table:
        """All of it, in one; columns in several chunks. The file goes when the table does.

        Raises:
            ArtifactError: The disk of the temporary folder is full.
        """
        if self._writer is None:
            return pa.concat_tables(self._tables)
        try:
            self._writer.close()
            self._file.flush()
        except OSError as error:
            raise self._full(error) from error
        with self._file:
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped))).read_all()

    def _full(self, error: OSError) -> ArtifactError:
        if self._file is not None:
            with suppress(OSError):  # what waits in its buffer cannot be written either
                self._file.close()
        return no_room(error, "the columns of a log")
