"""TypedRows: the blocks of a file as typed columns of events; what cannot be typed is noted and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.block import Block
from lightning_mp.data.column_types import ColumnType, to_type
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.event_kinds import EventKinds
from lightning_mp.data.event_times import event_times
from lightning_mp.data.iso_time import to_microseconds
from lightning_mp.data.rejects import Rejects, positions
from lightning_mp.data.row_screen import RowScreen


@dataclass(slots=True)
class TypedRows:
    """Types the rows of a file, block by block.

    Args:
        columns: Where the file keeps what.
        attributes: Type of each further column.
        kinds: Translates and counts kinds of events.
        rejects: Where rows that cannot be typed are noted.
        dialect: Missing texts and decimal mark of text columns.

    Attributes:
        time_formats: Rows by the way their time was written.
    """

    columns: Columns
    attributes: Mapping[str, ColumnType]
    kinds: EventKinds
    rejects: Rejects
    dialect: CsvDialect
    time_formats: Counter[str] = field(default_factory=Counter)

    def table(self, block: Block) -> pa.Table:
        """The good rows of a block: `row`, `user`, `item`, `time`, `event` or the flags, `value`, the attributes."""
        columns, dialect = self.columns, self.dialect
        screen = RowScreen(block, self.rejects, dialect.missing, dialect.decimal, columns.time_zone)
        out: dict[str, pa.Array] = {"row": pa.array(block.rows)}
        out["user"] = screen.key(columns.user, columns.user_type)
        out["item"] = screen.key(columns.item, columns.item_type)
        out["time"] = self._times(screen)
        if isinstance(columns.event, EventFlags):
            for kind, name in columns.event.flags.items():
                out[kind] = screen.typed(name, "bool", required=True)
        elif not isinstance(columns.event, str):
            out["event"] = pa.array([columns.event.constant] * len(block.rows), type=pa.string())
        if columns.value is not None:
            out["value"] = screen.typed(columns.value, "double")
        for name, kind in self.attributes.items():
            out[name] = screen.typed(name, kind)
        if isinstance(columns.event, str):
            out["event"] = self._events(screen, columns.event)
        kept = pa.table(out).filter(pa.array(screen.good))
        self._count(kept)
        return kept

    def _times(self, screen: RowScreen) -> pa.Array:
        name, zone = self.columns.time, self.columns.time_zone
        times = event_times(screen.values[name], column=name, time_zone=zone)
        screen.reject(times.missing, name, "is missing")
        for reason, mask in times.wrong.items():
            screen.reject(mask, name, reason)
        for word, text in (("lies before", self.columns.earliest), ("does not lie before", self.columns.latest)):
            limit = to_microseconds(text, zone)
            outside = times.microseconds < limit if word == "lies before" else times.microseconds >= limit
            screen.reject(outside, name, f"{word} {text}")
        self.time_formats.update(times.formats)
        return pa.array(times.microseconds)

    def _events(self, screen: RowScreen, name: str) -> pa.Array:
        typed = to_type(screen.values[name], "string", column=name)
        screen.reject(positions(pc.is_null(typed.values)), name, "is missing")
        # Only good rows are counted, so the others get a word that is translated and thrown away.
        good = screen.good.copy()
        names, kept = self.kinds.translate(typed.values.filter(pa.array(good)), screen.block.lines[good])
        screen.good[np.flatnonzero(good)[~kept]] = False
        whole = np.zeros(len(good), dtype=np.int64)
        whole[good] = np.arange(len(names))
        return names.take(pa.array(whole)) if len(names) else pa.nulls(len(good), type=pa.string())

    def _count(self, kept: pa.Table) -> None:
        event = self.columns.event
        if isinstance(event, EventFlags):
            self.kinds.counts["impression"] += kept.num_rows
            for kind in event.flags:
                if kind != "impression":
                    self.kinds.counts[kind] += pc.sum(kept[kind]).as_py() or 0
        elif not isinstance(event, str):
            self.kinds.counts[event.constant] += kept.num_rows
