"""LogRows: a log with all that features need beside each event, before any row is labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.attribute_table import AttributeTable, join_attributes, table_header
from lightning_mp.data.chosen_rows import joined, rows_at
from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.durations import duration_us
from lightning_mp.data.event_source import Paths, open_source, source_files
from lightning_mp.data.events import EventLog, Progress, read_events
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.label import EventLabel, Label
from lightning_mp.data.needed_columns import DERIVED, NeededColumns, Place, needed_columns
from lightning_mp.data.negative_rows import with_negatives
from lightning_mp.data.negatives import Negatives
from lightning_mp.data.rejects import Rejects
from lightning_mp.data.repeated_rows import repeated_rows
from lightning_mp.data.row_pieces import column_array, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.sessions import sessions
from lightning_mp.errors import ConfigurationError, LeakageError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How a log is read; the arguments of `prepare` that say so."""

    columns: Columns
    event_map: Mapping[str, str | None]
    csv: CsvDialect
    items: AttributeTable | None
    users: AttributeTable | None
    sessions: str | None
    negatives: Negatives | None
    max_bad_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRows:
    """Events, and the rows that were drawn beside them.

    Attributes:
        log: As read; its table holds the attributes of items and users too, `session` and `dwell` where they are
            made, and the drawn rows, in which `event` is null and `row` counts on from the log's last.
        user: (rows,) codes.
        item: (rows,) codes.
        time: (rows,) UTC microseconds.
        users: Code to key.
        items: Code to key.
        notes: What was done, in words, by what.
    """

    log: EventLog
    user: Int64
    item: Int64
    time: Int64
    users: pa.Array
    items: pa.Array
    notes: dict[str, str]

    @property
    def pair(self) -> Int64:
        """(rows,) code of user and item."""
        made = scratch_array(len(self.user), np.int64)
        for piece in row_pieces(len(made)):
            made[piece] = self.user[piece] * len(self.items) + self.item[piece]
        return made


def log_rows(
    path: Paths, settings: LogSettings, specs: Sequence[FeatureSpec], label: Label, progress: Progress
) -> LogRows:
    """Read a log and put beside each event what the features and the label need.

    Raises:
        ConfigurationError: Settings that do not go together.
        DataError: A file cannot be used as it is.
        LeakageError: A feature reads what is known only after its row.
    """
    columns, negatives = settings.columns, settings.negatives
    needed = _needed(path, settings, specs, label)
    log = read_events(
        path,
        columns=columns,
        event_map=settings.event_map,
        attributes=needed.log,
        csv=settings.csv,
        max_bad_share=settings.max_bad_share,
        progress=progress,
    )
    user, users = _codes(log.table["user"])
    item, items = _codes(log.table["item"])
    time = column_array(log.table["time"], np.int64)
    repeated = repeated_rows(log.table, user, item, time)
    notes = {"duplicates": f"{repeated:,} rows repeat an earlier one of the same user, item, time and kind"}
    table = log.table
    if settings.sessions is not None:
        table, count = _with_sessions(table, user, time, duration_us(settings.sessions, name="sessions"))
        notes["sessions"] = f"{count:,} sessions, cut at pauses of {settings.sessions}"
    if negatives is not None:
        if not isinstance(label, EventLabel) or isinstance(columns.event, EventFlags):
            problem = "`negatives` are for a log of what was taken, with a label such as `{event: order}`"
            raise ConfigurationError(problem, "drop `negatives`: this log has rows of both kinds")
        table, origin, drawn = with_negatives(
            table, user, item, time, items=items, specs=specs, columns=columns, negatives=negatives, label=label
        )
        user, item = joined(user, rows_at(user, origin)), joined(item, drawn)
        time = joined(time, rows_at(time, origin))
        notes["negatives"] = f"{len(drawn):,} rows drawn, {negatives.weighting}"
    for key, source, attributes in (("item", settings.items, needed.items), ("user", settings.users, needed.users)):
        if source is not None and attributes:
            table, absent = join_attributes(
                table, source, attributes, key=key, csv=settings.csv, max_bad_share=settings.max_bad_share
            )
            notes[f"{key}s"] = f"{absent:,} of {table.num_rows:,} rows have no {key} in `{source.path}`"
    return LogRows(
        log=replace(log, table=table), user=user, item=item, time=time, users=users, items=items, notes=notes
    )


def _needed(path: Paths, settings: LogSettings, specs: Sequence[FeatureSpec], label: Label) -> NeededColumns:
    headers: dict[Place, Sequence[str]] = {"log": open_source(source_files(path)[0], settings.csv, Rejects()).header}
    if settings.items is not None:
        headers["items"] = table_header(settings.items, settings.csv)
    if settings.users is not None:
        headers["users"] = table_header(settings.users, settings.csv)
    if settings.sessions is not None:
        gap = duration_us(settings.sessions, name="sessions")
        if gap == 0 or set(DERIVED) & set(headers["log"]):
            fault = "must be longer than 0" if gap == 0 else "makes `session` and `dwell`, which the log has already"
            raise ConfigurationError(f"`sessions` {fault}", "change `sessions`, or leave it out")
        for spec in specs:
            if spec.past is not None and spec.past.column == "dwell" and spec.past.delay_us < gap:
                problem = (
                    f"feature `{spec.name}` reads `dwell` {spec.past.delay} after the event; it may take as long as "
                )
                raise LeakageError(
                    f"{problem}the gap between sessions to be known", f"use `delay: {settings.sessions}`"
                )
    basket = settings.negatives.basket if settings.negatives is not None else None
    return needed_columns(
        specs,
        settings.columns,
        label,
        headers=headers,
        others=() if basket is None else (basket,),
        sessions=settings.sessions is not None,
    )


def _codes(keys: pa.ChunkedArray) -> tuple[Int64, pa.Array]:
    """A code for each key, in order of first appearance, and the key of each code."""
    codes, words = column_codes(keys)
    whole = scratch_array(len(codes), np.int64)
    for piece in row_pieces(len(codes)):
        whole[piece] = codes[piece]
    return whole, words


def _with_sessions(table: pa.Table, user: Int64, time: Int64, gap_us: int) -> tuple[pa.Table, int]:
    session, dwell, count = scratch_array(len(user), np.int64), scratch_array(len(user), np.float64), 0
    for places in key_buckets(user):
        made = sessions(user[places], time[places], gap_us)
        session[places], dwell[places] = count + made.session, made.dwell
        count += made.count
    table = table.append_column("session", pa.array(session))
    return table.append_column("dwell", pa.array(dwell, from_pandas=True)), count
