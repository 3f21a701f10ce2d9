"""Read an event log: columns mapped, every value typed by rule, every row that is left out told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from lightning_mp.data.column_types import ColumnType
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.event_kinds import EventKinds
from lightning_mp.data.event_source import Paths, open_source, source_digest, source_files
from lightning_mp.data.rejects import Rejects
from lightning_mp.data.required_columns import require_columns
from lightning_mp.data.table_spool import TableSpool
from lightning_mp.data.typed_rows import TypedRows
from lightning_mp.errors import ConfigurationError, DataError

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """An event log in memory, typed.

    Attributes:
        table: A row an event that was kept, in the order of the files: `row` (int64, data row, from 0, the files' rows
            counted on),
            `user` and `item` (text or int64), `time` (int64, UTC microseconds), `event` (text, long form) or one bool
            column a flag (wide form), `value` (double) if mapped, then the attributes. Missing is null, never "".
        rejects: Rows that were left out: `line` (from 1; in Parquet the row, from 1), `column`, `value`, `reason`,
            `file` (where there are several); the first 10,000 of them, by line.
        rejected: How many were left out.
        rows: All data rows of the files.
        counts: Kept rows by kind of event; in the wide form a row counts as an impression and under each set flag.
        ignored: Rows that `event_map` dropped, by the log's own word.
        time_formats: Rows by the way their time was written, such as `epoch seconds`.
        digest: sha256 of the file, or over the digests of several.
    """

    table: pa.Table
    rejects: pa.Table
    rejected: int
    rows: int
    counts: dict[str, int]
    ignored: dict[str, int]
    time_formats: dict[str, int]
    digest: str


def read_events(
    path: Paths,
    *,
    columns: Columns,
    event_map: Mapping[str, str | None] | None = None,
    attributes: Mapping[str, ColumnType] | None = None,
    csv: CsvDialect | None = None,
    max_bad_share: float = 0.001,
    progress: Progress | None = None,
) -> EventLog:
    r"""Read an event log: CSV, Parquet or JSON lines, one file or several.

    Nothing is guessed from the first rows: CSV and JSON are read as text and typed by rule over all rows, Parquet keeps
    its types. In JSON lines a nested field is called `outer.inner`; a list of objects gives a row an object. Keys stay
    as they are written. A row that cannot be read is rejected with its line, column, value and reason.

    Args:
        path: The file, a list of files, or a pattern such as `logs/*.csv`; several files are read one after another.
        columns: Where it keeps what.
        event_map: Kind of each word of the event column that is not a kind itself; `ignore` or null drops its rows.
            Case and surrounding spaces do not count.
        attributes: Further columns to keep, with the type of each; `"auto"`: text in a CSV, the file's own in Parquet;
            `"time"` becomes int64 UTC microseconds.
        csv: How a CSV file is written.
        max_bad_share: Share in [0, 1] of rows that may be rejected.
        progress: Called with one line of text now and then.

    Raises:
        DataError: The file cannot be read; a column is missing; a kind of event is unknown; too many rows are bad;
            there are no rows.
        ConfigurationError: `max_bad_share` is no share, or an attribute has the name of a column of ours.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = file.write_text("who,what,when,kind\n007,a,2026-03-01T10:00:00Z,View\n7,b,1772359200,purchase\n")
        >>> log = read_events(file, columns=Columns(user="who", item="what", time="when", event="kind"),
        ...                   event_map={"purchase": "order"})
        >>> log.table["user"].to_pylist(), log.table["time"].to_pylist()
        (['007', '7'], [1772359200000000, 1772359200000000])
        >>> log.counts, log.time_formats
        ({'view': 1, 'order': 1}, {'epoch seconds': 1, 'ISO with zone': 1})
    """
    if not 0 <= max_bad_share <= 1:
        raise ConfigurationError(f"`max_bad_share` must be in [0, 1], got {max_bad_share!r}", "use 0.001")
    files, dialect, rejects = source_files(path), csv or CsvDialect(), Rejects()
    attributes = dict(attributes or {})
    _refuse_clash(columns, attributes)
    names = list(dict.fromkeys([*columns.source_columns().values(), *attributes]))
    kinds = EventKinds(event_map or {})
    rows = TypedRows(columns, attributes, kinds, rejects, dialect)
    spool, seen = TableSpool(), 0
    for file in files:
        rejects.file = str(file) if len(files) > 1 else ""
        reader = open_source(file, dialect, rejects)
        require_columns(file, reader.header, names, columns, delimiter=reader.delimiter)
        told = 0.0
        for block in reader.blocks(names):
            spool.add(rows.table(replace(block, rows=block.rows + seen)))
            if progress and told + 0.1 <= block.done < 1:
                told = block.done
                progress(f"read {reader.rows_seen:,} rows of {file.name} ({told:.0%})")
        if not reader.rows_seen:
            raise DataError(f"`{file}` holds a header and no rows", "check what was to write it")
        seen += reader.rows_seen
    shown = str(files[0]) if len(files) == 1 else f"{files[0]}` and {len(files) - 1:,} more `{files[-1]}"
    if isinstance(columns.event, str):
        kinds.require_known(shown, columns.event)
    rejects.require_share(shown, seen, max_bad_share)
    table = spool.table()
    if not table.num_rows:
        raise _nothing_kept(shown, seen, kinds, rejects)
    return EventLog(
        table=table if spool.on_disk else table.combine_chunks(),
        rejects=rejects.table(),
        rejected=rejects.total,
        rows=seen,
        counts=dict(kinds.counts),
        ignored=dict(kinds.ignored),
        time_formats=dict(rows.time_formats),
        digest=source_digest(files),
    )


def _refuse_clash(columns: Columns, attributes: Mapping[str, ColumnType]) -> None:
    ours = {"row", "user", "item", "time"}
    ours |= set(columns.event.flags) if isinstance(columns.event, EventFlags) else {"event"}
    ours |= set() if columns.value is None else {"value"}
    for name in attributes:
        if name in ours:
            problem = f"attribute `{name}` has the name of a column that every event table has"
            raise ConfigurationError(problem, f"rename the column `{name}` in the file")


def _nothing_kept(file: str, rows: int, kinds: EventKinds, rejects: Rejects) -> DataError:
    ignored = ", ".join(f"`{word}` {count:,}" for word, count in kinds.ignored.most_common(4)) or "none"
    problem = f"`{file}`: none of {rows:,} rows was kept; rejected: {rejects.summary() or 'none'}; ignored: {ignored}"
    return DataError(problem, "map the kinds that count in `event_map`" if kinds.ignored else "mend the file")
