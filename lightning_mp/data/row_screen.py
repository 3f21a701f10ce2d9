"""RowScreen: types the columns of a block and keeps count of the rows that cannot be typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.block import Block
from lightning_mp.data.column_types import ColumnType, to_type
from lightning_mp.data.event_times import event_times
from lightning_mp.data.rejects import Rejects, positions
from lightning_mp.data.typed_text import Typed

Mask = npt.NDArray[np.bool_]
_NO_KEY: Final = pa.array(["nan", "none", "null", "na", "<na>", "n/a", "\\n", "nat"])
"""Words that programs write for a missing key, in lower case; as a key each would be one huge false user."""


@dataclass(slots=True)
class RowScreen:
    """The rows of a block, and which of them are good so far.

    Args:
        block: As read.
        rejects: Where bad rows are noted.
        missing: Texts that stand for a missing value beside the empty one.
        decimal: Decimal mark of numbers written as text.
        time_zone: Of times written without one.

    Attributes:
        values: The block's columns, missing texts null.
        good: (N,).
    """

    block: Block
    rejects: Rejects
    missing: tuple[str, ...] = ()
    decimal: str = "."
    time_zone: str | None = None
    values: dict[str, pa.Array] = field(init=False)
    good: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.values = {name: self._nulled(values) for name, values in self.block.columns.items()}
        self.good = np.ones(len(self.block.rows), dtype=bool)

    def reject(self, bad: Mask, column: str, reason: str) -> None:
        """Note rows that were good so far: a row is counted once, under its first fault."""
        bad = bad & self.good
        if bad.any():
            self.rejects.add_many(bad, self.block.lines, column, self.block.columns[column], reason)
            self.good &= ~bad

    def key(self, name: str, kind: ColumnType) -> pa.Array:
        """A column of keys: a missing one, or a word for it, makes the row bad."""
        typed = self._checked(name, to_type(self.values[name], kind, column=name))
        if pa.types.is_string(typed.type):
            folded = pc.utf8_lower(typed) if _short(typed) else typed
            self.reject(positions(pc.is_in(folded, value_set=_NO_KEY)), name, "is a word for a missing key")
        self.reject(positions(pc.is_null(typed)), name, "is missing")
        return typed

    def typed(self, name: str, kind: ColumnType, *, required: bool = False) -> pa.Array:
        """A column in a type: a value of another kind makes the row bad, a missing one only where it is required."""
        if kind == "time":
            times = event_times(self.values[name], column=name, time_zone=self.time_zone)
            for reason, mask in times.wrong.items():
                self.reject(mask, name, reason)
            typed = pa.array(times.microseconds, mask=times.missing)
        else:
            typed = self._checked(name, to_type(self.values[name], kind, column=name, decimal=self.decimal))
        if required:
            self.reject(positions(pc.is_null(typed)), name, "is missing")
        return typed

    def _checked(self, name: str, typed: Typed) -> pa.Array:
        for reason, mask in typed.wrong.items():
            self.reject(mask, name, reason)
        return typed.values

    def _nulled(self, values: pa.Array) -> pa.Array:
        """Text of a CSV or of a Parquet file: nothing, or a declared word for nothing, becomes null."""
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
            values = values.cast(pa.string())
        if not pa.types.is_string(values.type):
            return values
        nothing = pc.is_in(values, value_set=pa.array(["", *self.missing]))
        return pc.if_else(nothing, None, values) if positions(nothing).any() else values


def _short(values: pa.Array) -> bool:
    shortest = pc.min(pc.utf8_length(values)).as_py()
    return shortest is not None and shortest <= 4
