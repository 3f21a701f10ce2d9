"""ColumnPass: one column on its way through an audit, whatever its type."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.audit.column_names import is_key
from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.row_sample import SampledColumn
from lightning_mp.data.audit.text_state import TextState
from lightning_mp.data.audit.time_state import TimeState
from lightning_mp.data.audit.working_memory import WorkingMemory
from lightning_mp.errors import DataError

Marks = npt.NDArray[np.int8]
Chosen = tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]


class ColumnPass:
    """One column on its way through an audit.

    A column of a CSV file is text; it is one of numbers, or of times, where nine in ten of its first texts are.

    Args:
        name: As it stands in the source.
        kind: Arrow type.
        label: Whether there is a label.
        parts: Whether rows belong to a first and a last part.
        now: Of the audit, UTC microseconds.
        untyped: Whether the column comes from a CSV file.
        decimal: Decimal mark of such a file.

    Attributes:
        state: What the pass keeps; `None` for a type that cannot be audited.
        unreadable: Texts of a CSV column of numbers or times that are none.
        example: One of them.
    """

    def __init__(
        self, name: str, kind: pa.DataType, *, label: bool, parts: bool, now: int, untyped: bool = False,
        decimal: str = ".",
    ) -> None:  # fmt: skip
        self.name, self.kind, self.now, self.decimal = name, kind, now, decimal
        self._label, self._parts = label, parts
        self.unreadable, self.example = 0, ""
        self.sample = SampledColumn()
        self._undecided: list[tuple[pa.Array, Marks | None, Marks | None]] | None = [] if untyped else None
        self.state: NumberState | TextState | TimeState | None = None if untyped else self._state(audited_as(kind))

    def _state(self, what: str) -> NumberState | TextState | TimeState | None:
        match what:
            case "number":
                return NumberState(label=self._label, parts=self._parts)
            case "text":
                return TextState(label=self._label)
            case "time":
                return TimeState(self.now)
            case _:
                return None

    def update(
        self, column: pa.Array, label: Marks | None, part: Marks | None, chosen: Chosen, memory: WorkingMemory
    ) -> None:
        """Take in a piece.

        Args:
            column: (N,) of the source.
            label: (N,) 1 with the label, 0 without, -1 where it is missing; or `None`.
            part: (N,) 0 in the first part, 1 in the last, -1 between; or `None`.
            chosen: Rows to compare with other columns, and their hashes.
            memory: To work in, not used by another thread.
        """
        if self._undecided is not None:
            column = _without_empty(column)
            self._decide(column)
        if self.state is None:
            if self._undecided is not None:
                self._undecided.append((column, label, part))
            return
        if self._undecided:
            for waiting in self._undecided:
                self._take(*waiting, memory)
            self._undecided = []
        values, valid = self._take(column, label, part, memory)
        places, hashes = chosen
        if values is not None and len(values) == len(column) and valid is None:
            self.sample.take(hashes, values[places].astype(np.float64))
        elif valid is not None and values is not None and len(valid) == len(column):
            spread = np.full(len(column), np.nan)
            spread[valid] = values
            self.sample.take(hashes, spread[places])

    def finish(self) -> None:
        """Decide on a column that held nothing at all."""
        if self._undecided is not None and self.state is None:
            self.state = self._state("text")
            for waiting in self._undecided:
                self._take(*waiting, None)

    def _decide(self, texts: pa.Array) -> None:
        from lightning_mp.data.event_times import event_times
        from lightning_mp.data.typed_text import to_double

        there = texts.drop_null()
        if self.state is not None or not len(there):
            return
        if is_key(self.name):  # a key keeps its digits as text: 007 is not 7, and 2^53 + 1 is no double
            self.state = self._state("text")
            return
        head = there.slice(0, 10_000)
        numbers = len(head) - to_double(head, self.decimal).values.null_count
        if numbers >= 0.9 * len(head):
            self.state = self._state("number")
            return
        wrong = event_times(head.slice(0, 1000), column=self.name, time_zone="UTC").wrong
        times = len(head.slice(0, 1000)) - sum(int(mask.sum()) for mask in wrong.values())
        self.state = self._state("time" if times >= 0.9 * len(head.slice(0, 1000)) else "text")

    def _take(
        self, column: pa.Array, label: Marks | None, part: Marks | None, memory: WorkingMemory | None
    ) -> tuple[npt.NDArray[Any] | None, npt.NDArray[np.bool_] | None]:
        if isinstance(self.state, TextState):
            self.state.update(_text(column), label=label, part=part)
            return None, None
        if self._undecided is not None:
            column = self._typed(column)
        if isinstance(self.state, TimeState):
            values, valid = times_of(column, self.name)
            self.state.update(values, valid, part=part)
            return values, valid
        values, valid = numbers_of(column)
        wide = pa.types.is_fixed_size_list(column.type)
        assert isinstance(self.state, NumberState)
        if wide:
            label = part = None
        self.state.update(values, valid, label=label, part=part, memory=memory)
        return values, valid

    def _typed(self, texts: pa.Array) -> pa.Array:
        from lightning_mp.data.event_times import event_times
        from lightning_mp.data.typed_text import to_double

        if isinstance(self.state, TimeState):
            times = event_times(texts, column=self.name, time_zone="UTC")
            lost = times.missing.copy()
            for mask in times.wrong.values():
                self._note(texts, mask)
                lost |= mask
            return pa.array(times.microseconds, mask=lost).cast(pa.timestamp("us", "UTC"))
        typed = to_double(texts, self.decimal)
        for mask in typed.wrong.values():
            self._note(texts, mask)
        return typed.values

    def _note(self, texts: pa.Array, mask: npt.NDArray[np.bool_]) -> None:
        if not self.unreadable and mask.any():
            self.example = str(texts[int(np.argmax(mask))].as_py())
        self.unreadable += int(mask.sum())


def audited_as(kind: pa.DataType) -> str:
    """How a column of a type is audited: as `number`, `text`, `time`, or `nothing` for types without a rule.

    Args:
        kind: Arrow type; of a dictionary, that of its values counts.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return audited_as(kind.value_type)
    if types.is_fixed_size_list(kind):
        return "number" if types.is_floating(kind.value_type) or types.is_integer(kind.value_type) else "nothing"
    if types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        return "number"
    if types.is_null(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    return "time" if types.is_timestamp(kind) or types.is_date(kind) else "nothing"


def numbers_of(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """A column as float32, float64 or int64 without its missing values, and which rows are there.

    Args:
        column: Of a type that `audited_as` calls `number`.

    Returns:
        (V,) numbers, and (N,) bool or `None` where all are there. Lists come as one long column.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.flatten()
        kind = column.type
    if pa.types.is_null(kind):
        return np.empty(0), np.zeros(len(column), dtype=bool)
    valid = None
    if column.null_count:
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
        column = column.drop_null()
    if pa.types.is_decimal(kind) or pa.types.is_uint64(kind):
        column = column.cast(pa.float64(), safe=False)  # a hash of 64 bits is more than a double holds
    elif pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False).astype(np.float32), valid
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype == np.float16:
        return values.astype(np.float32), valid
    return (values if values.dtype.kind == "f" else values.astype(np.int64)), valid


def times_of(column: pa.Array, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """A column of timestamps or dates as UTC microseconds without its missing values, and which rows are there.

    Args:
        column: Of a type that `audited_as` calls `time`.
        name: Of the column, for errors.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        stamps = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
    except pa.ArrowException as error:
        raise DataError(f"column `{name}` holds times that cannot be read: {error}", "leave it out") from error
    if not stamps.null_count:
        return stamps.to_numpy(zero_copy_only=False), None
    valid = np.asarray(stamps.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    return stamps.drop_null().to_numpy(zero_copy_only=False), valid


def _text(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _without_empty(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), None, texts)
