"""EventColumns: what histories read of each event."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.history import LABEL, History
from lightning_mp.data.row_pieces import column_array

Mask = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


class EventColumns:
    """Reads the columns of a history, those of kinds once for all histories.

    Args:
        events: As `point_in_time` reads them.
        flags: Kinds that have a flag column (wide form); `None` for the long form.
    """

    def __init__(self, events: pa.Table, flags: tuple[str, ...] | None) -> None:
        self._events = events
        self._flags = flags
        self._kinds: dict[str, Mask] = {}

    def counts(self, history: History) -> Mask:
        """(N,) whether each event counts: it is of the kind, and has a value where one is read."""
        kind = self.kind(history.of)
        column = self._column(history)
        if column is None or not self._events[column].null_count:
            return kind
        return kind & _mask(self._events[column].is_valid())

    def kind(self, kind: str) -> Mask:
        """(N,) whether each row is an event of a kind, or has a `label`."""
        if kind not in self._kinds:
            self._kinds[kind] = _mask(self._is(kind))
        return self._kinds[kind]

    def numbers(self, history: History) -> Float64 | Int32 | None:
        """(N,) what is summed, anything where there is no value; codes where distinct values are counted."""
        name = self._column(history)
        if name is None:
            return None
        column = self._events[name]
        if history.measure != "distinct":
            return column_array(column.cast(pa.float64(), safe=False), np.float64)
        return column_codes(column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column)[0]

    def _is(self, kind: str) -> pa.ChunkedArray:
        if kind == LABEL:
            return self._events[LABEL].is_valid()
        if self._flags is None:
            return pc.equal(self._events["event"], kind)
        return self._events[kind] if kind in self._flags else self._events["event"].is_valid()

    def _column(self, history: History) -> str | None:
        of_label = history.of == LABEL and history.measure in ("rate", "sum", "mean")
        return LABEL if of_label and history.column is None else history.column


def _mask(column: pa.ChunkedArray) -> Mask:
    return column_array(column.fill_null(False), np.bool_)
