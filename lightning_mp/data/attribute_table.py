"""AttributeTable: what is known of items or users, in a table of its own, joined to the events by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.as_of import as_of
from lightning_mp.data.column_types import ColumnType
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.event_source import RowFile, open_source, source_files
from lightning_mp.data.printable import printable
from lightning_mp.data.rejects import Rejects
from lightning_mp.data.row_screen import RowScreen
from lightning_mp.data.table_spool import TableSpool
from lightning_mp.errors import DataError

Int64 = npt.NDArray[np.int64]
_AT_ONCE = 1 << 20
"""Events that are joined at a time; each time looks at the whole table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeTable:
    """A table of items or of users.

    Args:
        path: A CSV, Parquet or JSON lines file.
        key: Its column that holds the item's or the user's key, as the log writes it.
        time: Its column that says since when a row holds. A key may have many rows then, and an event takes the latest
            one that is strictly older. Without it a key has one row, which is taken to have held all the time.
        time_zone: IANA name of the zone of times that are written without one.
    """

    path: str
    key: str
    time: str | None = None
    time_zone: str | None = None


def table_header(table: AttributeTable, csv: CsvDialect) -> tuple[str, ...]:
    """Names of a table's columns.

    Raises:
        DataError: The file cannot be read, or has no column of the key or the time.
    """
    (file,) = source_files(table.path)
    header = open_source(file, csv, Rejects()).header
    for name in (table.key, table.time):
        if name is not None and name not in header:
            there = ", ".join(f"`{printable(column)}`" for column in header)
            raise DataError(f"`{file}` has no column `{name}`; it has {there}", "change `key` or `time` of the table")
    return header


def join_attributes(
    events: pa.Table,
    table: AttributeTable,
    attributes: Mapping[str, ColumnType],
    *,
    key: str,
    csv: CsvDialect,
    max_bad_share: float,
) -> tuple[pa.Table, int]:
    """Add a table's columns to events.

    Args:
        events: With `time` and the column `key`.
        table: Where they are.
        attributes: Which ones, with their types.
        key: `user` or `item`.
        csv: How a CSV file is written.
        max_bad_share: Share in [0, 1] of the table's rows that may be rejected.

    Returns:
        The events with these columns, null where the table has nothing; and how many events it has nothing for.

    Raises:
        DataError: A key stands twice in a table without times, or too many rows are bad.
    """
    (file,) = source_files(table.path)
    kind: ColumnType = "int64" if pa.types.is_integer(events.schema.field(key).type) else "string"
    rejects = Rejects()
    source = open_source(file, csv, rejects)
    rows = _read(source, table, {table.key: kind, **attributes}, csv, rejects)
    rejects.require_share(str(file), source.rows_seen, max_bad_share)
    keys = pa.concat_arrays([rows["key"].combine_chunks()]) if rows.num_rows else rows["key"].combine_chunks()
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    first = np.zeros(0, dtype=np.int64)
    if table.time is None:
        first = np.full(len(encoded.dictionary) + 1, -1, dtype=np.int64)
        first[codes] = np.arange(len(codes))
        if len(encoded.dictionary) < len(codes):
            again = int(np.flatnonzero(first[codes] != np.arange(len(codes)))[0])
            line, value = rows["line"][int(first[codes[again]])].as_py(), keys[again].as_py()
            problem = f"`{file}`, line {line:,}: the key {value!r} of `{table.key}` stands there a second time"
            raise DataError(problem, "keep one row a key, or name the column that says since when each holds: `time`")
    spool, absent = TableSpool(), 0
    for at in range(0, events.num_rows, _AT_ONCE):
        some = events.select([key, "time"]).slice(at, _AT_ONCE)
        asked = pc.index_in(some[key], value_set=encoded.dictionary).fill_null(-1).to_numpy().astype(np.int64)
        if table.time is None:
            found = first[asked]
        else:
            found = as_of(codes, rows["time"].to_numpy(), asked, some["time"].to_numpy())
        where = pa.array(found, mask=found < 0)
        spool.add(pa.table({name: rows[name].take(where) for name in attributes}))
        absent += int(np.count_nonzero(found < 0))
    joined = spool.table()
    for name in attributes:
        events = events.append_column(name, joined[name])
    return events, absent


def _read(
    source: RowFile, table: AttributeTable, types: Mapping[str, ColumnType], csv: CsvDialect, rejects: Rejects
) -> pa.Table:
    """The good rows: `key`, `line`, `time` where there is one, and the attributes."""
    names = list(dict.fromkeys([*types, *([table.time] if table.time else [])]))
    tables = []
    for block in source.blocks(names):
        screen = RowScreen(block, rejects, csv.missing, csv.decimal, table.time_zone)
        columns = {"key": screen.key(table.key, types[table.key]), "line": pa.array(block.lines)}
        if table.time is not None:
            columns["time"] = screen.typed(table.time, "time", required=True)
        columns |= {name: screen.typed(name, kind) for name, kind in types.items() if name != table.key}
        tables.append(pa.table(columns).filter(pa.array(screen.good)))
    if not source.rows_seen:
        raise DataError(f"`{source.path}` holds a header and no rows", "check what was to write it")
    return pa.concat_tables(tables).combine_chunks()
