"""The slow oracle of `point_in_time`: one row at a time, by the definition, in plain NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.history import LABEL, History

Mask = npt.NDArray[np.bool_]


class Replay:
    """Recomputes histories from the events alone, sharing no code with `point_in_time`.

    Args:
        events: As `point_in_time` reads them.
        flags: Kinds that have a flag column (wide form); `None` for the long form.
    """

    def __init__(self, events: pa.Table, flags: tuple[str, ...] | None = None) -> None:
        self._events = events
        self._flags = flags
        self._time: npt.NDArray[np.int64] = events["time"].to_numpy()
        self._columns: dict[str, npt.NDArray[np.generic]] = {}
        self._words: dict[str, pa.Array] = {}

    def value(self, history: History, row: int, prior_mean: float | None = None) -> float:
        """The history of one row; NaN where there is none.

        Args:
            history: What is wanted.
            row: Of the events.
            prior_mean: Mean of the training part, for `prior`.
        """
        now = int(self._time[row]) - history.delay_us
        seen = self._time < now
        if history.window_us is not None:
            seen &= self._time >= now - history.window_us
        for name in history.by:
            codes = self._codes(name)
            seen &= codes == codes[row]
        of = seen & self._is(history.of)
        if history.measure == "count":
            return float(of.sum())
        if history.measure == "recency":
            return (int(self._time[row]) - int(self._time[of].max())) / 1e6 if of.any() else float("nan")
        if history.measure == "rate" and history.of != LABEL:
            above, below = float(of.sum()), float((seen & self._is(history.per or "")).sum())
            return _smoothed(above, below, history.prior, prior_mean)
        column = history.column or LABEL
        if history.measure == "distinct":
            codes = self._codes(column)
            present = of & ~self._missing(column)
            return float(len(np.unique(codes[present])))
        present = of & ~self._missing(column)
        numbers = np.asarray(self._column(column), dtype=np.float64)[present]
        if history.measure == "sum":
            return float(numbers.sum())
        return _smoothed(float(numbers.sum()), float(len(numbers)), history.prior, prior_mean)

    def _column(self, name: str) -> npt.NDArray[np.generic]:
        if name not in self._columns:
            self._columns[name] = self._events[name].to_numpy()
        return self._columns[name]

    def _missing(self, name: str) -> Mask:
        key = f"missing {name}"
        if key not in self._columns:
            self._columns[key] = self._events[name].is_null().to_numpy()
        return np.asarray(self._columns[key], dtype=bool)

    def _codes(self, name: str) -> npt.NDArray[np.int32]:
        """A number for each distinct value, -1 for a missing one."""
        key = f"codes {name}"
        if key not in self._columns:
            encoded = self._events[name].dictionary_encode().unify_dictionaries()
            found = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
            self._columns[key] = np.concatenate(found)
            self._words[name] = encoded.chunk(0).dictionary
        return np.asarray(self._columns[key], dtype=np.int32)

    def _is(self, kind: str) -> Mask:
        key = f"is {kind}"
        if key not in self._columns:
            if kind == LABEL:
                found = ~self._missing(LABEL)
            elif self._flags is not None and kind in self._flags:
                found = self._events[kind].fill_null(False).to_numpy()
            elif self._flags is not None:
                found = ~self._missing("event")
            else:
                codes = self._codes("event")
                found = (codes == self._words["event"].index(kind).as_py()) & (codes >= 0)  # -1: it never happened
            self._columns[key] = found
        return np.asarray(self._columns[key], dtype=bool)


def _smoothed(above: float, below: float, prior: float, mean: float | None) -> float:
    if prior:
        return (above + prior * (mean or 0.0)) / (below + prior)
    return above / below if below else float("nan")
