"""TypedRows: the blocks of a file as typed columns of events; what cannot be typed is noted and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
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
from lightning_mp.data.typed_text import Typed

Mask = npt.NDArray[np.bool_]
_NO_KEY: Final = pa.array(["nan", "none", "null", "na", "<na>", "n/a", "\\n", "nat"])
"""Words that programs write for a missing key, in lower case; as a key each would be one huge false user."""


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
        screen = _Screen(block, self.rejects, {n: self._nulled(v) for n, v in block.columns.items()})
        columns = self.columns
        out: dict[str, pa.Array] = {"row": pa.array(block.rows)}
        out["user"] = screen.key(columns.user, columns.user_type)
        out["item"] = screen.key(columns.item, columns.item_type)
        out["time"] = self._times(screen)
        if isinstance(columns.event, EventFlags):
            for kind, name in columns.event.flags.items():
                out[kind] = screen.typed(name, "bool", self.dialect.decimal, required=True)
        elif not isinstance(columns.event, str):
            out["event"] = pa.array([columns.event.constant] * len(block.rows), type=pa.string())
        if columns.value is not None:
            out["value"] = screen.typed(columns.value, "double", self.dialect.decimal)
        for name, kind in self.attributes.items():
            out[name] = screen.typed(name, kind, self.dialect.decimal)
        if isinstance(columns.event, str):
            out["event"] = self._events(screen, columns.event)
        kept = pa.table(out).filter(pa.array(screen.good))
        self._count(kept)
        return kept

    def _nulled(self, values: pa.Array) -> pa.Array:
        """Text of a CSV or of a Parquet file: nothing, or a declared word for nothing, becomes null."""
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
            values = values.cast(pa.string())
        if not pa.types.is_string(values.type):
            return values
        nothing = pc.is_in(values, value_set=pa.array(["", *self.dialect.missing]))
        return pc.if_else(nothing, None, values) if positions(nothing).any() else values

    def _times(self, screen: _Screen) -> pa.Array:
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

    def _events(self, screen: _Screen, name: str) -> pa.Array:
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


@dataclass(slots=True)
class _Screen:
    block: Block
    rejects: Rejects
    values: dict[str, pa.Array]
    good: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.good = np.ones(len(self.block.rows), dtype=bool)

    def reject(self, bad: Mask, column: str, reason: str) -> None:
        """Note rows that were good so far: a row is counted once, under its first fault."""
        bad = bad & self.good
        if bad.any():
            self.rejects.add_many(bad, self.block.lines, column, self.block.columns[column], reason)
            self.good &= ~bad

    def key(self, name: str, kind: ColumnType) -> pa.Array:
        typed = self._checked(name, to_type(self.values[name], kind, column=name))
        if pa.types.is_string(typed.type):
            folded = pc.utf8_lower(typed) if self._short(typed) else typed
            self.reject(positions(pc.is_in(folded, value_set=_NO_KEY)), name, "is a word for a missing key")
        self.reject(positions(pc.is_null(typed)), name, "is missing")
        return typed

    def typed(self, name: str, kind: ColumnType, decimal: str, *, required: bool = False) -> pa.Array:
        typed = self._checked(name, to_type(self.values[name], kind, column=name, decimal=decimal))
        if required:
            self.reject(positions(pc.is_null(typed)), name, "is missing")
        return typed

    def _checked(self, name: str, typed: Typed) -> pa.Array:
        for reason, mask in typed.wrong.items():
            self.reject(mask, name, reason)
        return typed.values

    @staticmethod
    def _short(values: pa.Array) -> bool:
        shortest = pc.min(pc.utf8_length(values)).as_py()
        return shortest is not None and shortest <= 4
