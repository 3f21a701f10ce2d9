"""EventColumns: what histories read of each event."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.history import LABEL, History

Mask = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


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

    def numbers(self, history: History) -> Float64 | Int64 | None:
        """(N,) what is summed, anything where there is no value; codes where distinct values are counted."""
        name = self._column(history)
        if name is None:
            return None
        column = self._events[name]
        if history.measure != "distinct":
            return np.asarray(column.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy())
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        encoded = column.dictionary_encode().unify_dictionaries()
        codes = [chunk.indices.fill_null(-1).to_numpy() for chunk in encoded.chunks]
        return np.concatenate([np.zeros(0, dtype=np.int32), *codes])

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
    return np.asarray(column.fill_null(False).to_numpy(), dtype=bool)
