"""AuditSource: batches of some columns, again and again, from any kind of table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import parquet

from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.input_file import file_kind
from lightning_mp.data.printable import printable
from lightning_mp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from lightning_mp.data.store.feature_store import FeatureStore

BATCH_ROWS: Final = 1 << 17
"""Rows a batch: what a column's numbers need then fits into a processor's own cache."""
_BUFFER: Final = 1 << 20
"""Bytes of a column that are read at once: without it all of a row group's, and a row group may be the whole file."""

Batch = tuple[list[pa.Array], int, str]
"""Columns, rows, and the split they belong to (`""` where there is none)."""


@dataclass(slots=True, kw_only=True)
class AuditSource:
    """A table that can be read more than once.

    Attributes:
        name: As the report shows it.
        fields: Name and Arrow type of each column; names may repeat.
        rows: How many, where that is known beforehand.
        read: Batches of the columns at some places.
        columns: Opens the source once more, to read the columns at one place after the other alone, each from beginning
            to end; `None` where the source is read row by row. Needs `rows`.
        untyped: Whether all columns are text, as in a CSV or JSON lines file.
        decimal: Decimal mark of such a file.
        splits: Names of the parts that rows belong to, in order; empty where there are none.
        notes: What happened on the way that the report should tell.
    """

    name: str
    fields: list[tuple[str, pa.DataType]]
    rows: int | None
    read: Callable[[Sequence[int]], Iterator[Batch]]
    columns: Callable[[], AbstractContextManager[Callable[[int], Iterator[pa.Array]]]] | None = None
    untyped: bool = False
    decimal: str = "."
    splits: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def place(self, name: str, what: str) -> int:
        """Place of a column.

        Raises:
            ConfigurationError: There is none of that name, or more than one.
        """
        from difflib import get_close_matches

        names = [entry[0] for entry in self.fields]
        if names.count(name) == 1:
            return names.index(name)
        if name in names:
            raise ConfigurationError(f"`{what}`: `{self.name}` has {names.count(name)} columns `{name}`", "rename them")
        near = get_close_matches(name, names, 1)
        shown = ", ".join(f"`{n}`" for n in names[:20])
        hint = f"did you mean `{near[0]}`?" if near else f"its columns are {shown}"
        raise ConfigurationError(f"`{what}`: `{self.name}` has no column `{name}`", hint)


def open_source(source: Any, csv: CsvDialect | None = None) -> AuditSource:
    """Open what is to be audited.

    Args:
        source: Path of a Parquet, CSV, JSON lines or Arrow IPC file, or of a feature store; a `FeatureStore`; or
            anything with the Arrow C stream: a `pyarrow.Table`, a polars or pandas frame, a DuckDB relation. A
            `RecordBatchReader` is read once and kept in memory, for an audit may have to look twice.
        csv: How a CSV file is written.

    Raises:
        ConfigurationError: It is none of these.
        DataError: A file cannot be read.
    """
    # What a source alone needs is imported where it is opened: together it is half of the time that a start takes.
    if isinstance(source, str | Path):
        path = Path(source)
        if (path / "LATEST").is_file():
            from lightning_mp.data.store.feature_store import FeatureStore

            return _store(FeatureStore(path))
        if path.is_file() and _starts_with(path, b"ARROW1"):
            return _ipc(path)
        written, dialect = file_kind(path), csv or CsvDialect()
        decimal = dialect.decimal if written == "csv" else "."
        return _parquet(path) if written == "parquet" else _text(path, dialect, decimal)
    if isinstance(source, pa.RecordBatchReader):
        source = source.read_all()
    if hasattr(source, "__arrow_c_stream__"):
        return _stream(source)
    from lightning_mp.data.store.feature_store import FeatureStore

    if isinstance(source, FeatureStore):
        return _store(source)
    kind = type(source).__name__
    hint = "give a path, a store, or a table with the Arrow C stream, such as `pyarrow.table(...)`"
    raise ConfigurationError(f"an audit cannot read a `{kind}`", hint)


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror or error}", "check the path") from error


def _damaged(path: Path, kind: str, error: Exception) -> DataError:
    reason = str(error).splitlines()[0][:200]
    return DataError(f"`{path}` cannot be read as {kind}: {reason}", "write or copy it again")


def _parquet(path: Path) -> AuditSource:
    try:
        file = parquet.ParquetFile(path)
        schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, "Parquet", error) from error
    # A column is named by its path inside the file, so a name with a dot, or twice, is asked for with all the others.
    flat = len(set(schema.names)) == len(schema.names) == len(file.schema.names)
    plain = flat and not any("." in name for name in schema.names)

    def opened(buffer: int, metadata: parquet.FileMetaData | None = None) -> parquet.ParquetFile:
        try:
            return parquet.ParquetFile(path, metadata=metadata, pre_buffer=False, buffer_size=buffer)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, "Parquet", error) from error

    def read(places: Sequence[int]) -> Iterator[Batch]:
        names = [schema.names[place] for place in places] if plain else None
        with opened(_BUFFER >> 2) as source:
            for batch in _batches(path, source, rows, names):
                columns = batch.columns if plain else [batch.column(place) for place in places]
                order = {name: index for index, name in enumerate(batch.schema.names)} if names else {}
                yield [columns[order[n]] for n in names] if names else columns, batch.num_rows, ""

    @contextmanager
    def columns() -> Iterator[Callable[[int], Iterator[pa.Array]]]:
        with opened(_BUFFER, file.metadata) as source:
            # Decoded by the thread that needs it, while it is still in its processor's cache.
            yield lambda place: (
                batch.column(0) for batch in _batches(path, source, rows, [schema.names[place]], use_threads=False)
            )

    fields = [(f.name, f.type) for f in schema]
    return AuditSource(name=str(path), fields=fields, rows=rows, read=read, columns=columns if plain else None)


def _batches(
    path: Path, file: parquet.ParquetFile, rows: int, names: list[str] | None, *, use_threads: bool = True
) -> Iterator[pa.RecordBatch]:
    met = 0
    try:
        for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=use_threads):
            met += batch.num_rows
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, "Parquet", error) from error
    if met != rows:  # Arrow notices columns of different lengths only where it reads several
        lengths = f"column `{printable((names or file.schema_arrow.names)[0])}` ends after {met:,} of {rows:,} rows"
        raise _damaged(path, "Parquet", pa.ArrowInvalid(lengths))


def _ipc(path: Path) -> AuditSource:
    def opened() -> pa.RecordBatchFileReader:
        try:
            return pa.ipc.open_file(pa.memory_map(str(path)))
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, "Arrow IPC", error) from error

    schema = opened().schema

    def read(places: Sequence[int]) -> Iterator[Batch]:
        reader = opened()
        for index in range(reader.num_record_batches):
            try:
                batch = reader.get_batch(index)
                # An offset that a damaged file got wrong would be followed out of the file, which ends the process.
                for place in places:
                    batch.column(place).validate(full=True)
            except (pa.ArrowException, OSError) as error:
                raise _damaged(path, "Arrow IPC", error) from error
            yield from _pieces(batch, places)

    return AuditSource(name=str(path), fields=[(f.name, f.type) for f in schema], rows=None, read=read)


def _stream(source: Any) -> AuditSource:
    schema = pa.RecordBatchReader.from_stream(source).schema

    def read(places: Sequence[int]) -> Iterator[Batch]:
        for batch in pa.RecordBatchReader.from_stream(source):
            yield from _pieces(batch, places)

    rows = len(source) if hasattr(source, "__len__") else None
    return AuditSource(
        name=type(source).__name__, fields=[(f.name, f.type) for f in schema], rows=rows, read=read
    )  # fmt: skip


def _pieces(batch: pa.RecordBatch, places: Sequence[int]) -> Iterator[Batch]:
    for start in range(0, batch.num_rows, BATCH_ROWS):
        piece = batch.slice(start, BATCH_ROWS)
        yield [piece.column(place) for place in places], piece.num_rows, ""


def _text(path: Path, dialect: CsvDialect, decimal: str) -> AuditSource:
    from lightning_mp.data.audit.text_batches import text_source_parts

    notes: list[str] = []
    header, read = text_source_parts(path, dialect, BATCH_ROWS, notes)
    return AuditSource(
        name=str(path), fields=[(name, pa.string()) for name in header], rows=None, read=read, untyped=True,
        decimal=decimal, notes=notes,
    )  # fmt: skip


def _store(store: FeatureStore) -> AuditSource:
    from lightning_mp.data.audit.store_batches import store_source_parts

    fields, splits, rows, read = store_source_parts(store, BATCH_ROWS)
    return AuditSource(name=str(store.path), fields=fields, rows=rows, read=read, splits=splits)
