"""From events to labelled rows: which rows are samples, their label, and their part of the time split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.durations import duration_us
from lightning_mp.data.event_label import followed_by
from lightning_mp.data.events import EventLog
from lightning_mp.data.label import EventLabel, Label, PreferenceLabel, ValueLabel
from lightning_mp.data.preference import preference_scores
from lightning_mp.data.time_split import PARTS, TimeSplit
from lightning_mp.errors import ConfigurationError, DataError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    """Samples of a log.

    Attributes:
        positions: (N,) int64, rows of the log's table, ascending.
        labels: (N,) float32 in [0, 1].
        parts: (N,) text: `train`, `validation` or `test`.
    """

    positions: Int64
    labels: Float32
    parts: npt.NDArray[np.str_]


def labelled_rows(log: EventLog, pair: Int64, *, columns: Columns, label: Label, split: TimeSplit) -> LabelledRows:
    """Label a log's rows and split them by time.

    Args:
        log: As read, with the value column of a `ValueLabel` among its columns.
        pair: (rows of the table,) code of user and item.
        columns: Where the file kept what.
        label: What counts.
        split: Where the parts begin.

    Raises:
        ConfigurationError: The label names a kind or column that the log does not have.
        DataError: No row can be labelled, a part is empty, or all training rows have the same label.
    """
    if isinstance(label, PreferenceLabel):
        rows = _by_preference(log, pair, columns, label, split)
    else:
        positions, labels = _by_event(log, pair, columns, label) if isinstance(label, EventLabel) else _by_value(
            log.table[_value_column(columns, label)], label
        )  # fmt: skip
        rows = LabelledRows(positions=positions, labels=labels, parts=split.parts(_numpy(log.table["time"])[positions]))
    _require_two_classes(rows, label, log)
    return rows


def _value_column(columns: Columns, label: ValueLabel) -> str:
    return "value" if label.value == columns.value else label.value


def _by_value(values: pa.ChunkedArray, label: ValueLabel) -> tuple[Int64, Float32]:
    numbers = values.to_numpy().astype(np.float64)
    positions = np.flatnonzero(~np.isnan(numbers))
    if not len(positions):
        raise DataError(
            f"label: column `{label.value}` is missing in every row", "name another column in `label.value`"
        )
    return positions, (numbers[positions] >= label.at_least).astype(np.float32)


def _by_event(log: EventLog, pair: Int64, columns: Columns, label: EventLabel) -> tuple[Int64, Float32]:
    there = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    if isinstance(columns.event, EventFlags):
        if label.event not in columns.event.flags:
            problem = f"label: no flag column is mapped to `{label.event}`; mapped are {', '.join(columns.event.flags)}"
            raise ConfigurationError(problem, f"map it: `columns.event.flags: {{{label.event}: its column}}`")
        flags = log.table[label.event].to_numpy().astype(np.float32)
        return np.arange(len(flags), dtype=np.int64), flags
    per = label.per or ("impression" if log.counts.get("impression") else "view")
    for kind in (per, label.event):
        if not log.counts.get(kind):
            problem = f"label: the log has no events of kind `{kind}`; it has {there}"
            raise DataError(problem, "change `label.event`, `label.per` or `event_map`")
    kinds = log.table["event"].combine_chunks().dictionary_encode()
    words = kinds.dictionary.to_pylist()
    codes = kinds.indices.to_numpy()
    found = followed_by(
        pair,
        _numpy(log.table["time"]),
        codes == words.index(label.event),
        duration_us(label.within, name="label.within"),
    )
    positions = np.flatnonzero(codes == words.index(per))
    return positions, found[positions].astype(np.float32)


def _by_preference(
    log: EventLog, pair: Int64, columns: Columns, label: PreferenceLabel, split: TimeSplit
) -> LabelledRows:
    time, weights = _numpy(log.table["time"]), _weights(log.table, columns, label)
    parts = split.parts(time)
    highest = max(label.preference.values())
    # Part by part: a pair's events of the test part must not raise its label in the training part.
    found = []
    for part in PARTS:
        inside = np.flatnonzero(parts == part)
        rows, scores = preference_scores(pair[inside], time[inside], weights[inside], highest)
        found.append((inside[rows], scores))
    positions = np.concatenate([rows for rows, _ in found])
    order = np.argsort(positions)
    positions = positions[order]
    labels = np.concatenate([scores for _, scores in found])[order]
    return LabelledRows(positions=positions, labels=labels, parts=parts[positions])


def _weights(table: pa.Table, columns: Columns, label: PreferenceLabel) -> npt.NDArray[np.float64]:
    if isinstance(columns.event, EventFlags):
        weights = np.full(table.num_rows, label.preference.get("impression", 0.0))
        for kind in columns.event.flags:
            flags = table[kind].to_numpy()
            weights = np.maximum(weights, np.where(flags, label.preference.get(kind, 0.0), 0.0))
        return weights
    kinds = table["event"].combine_chunks().dictionary_encode()
    by_code = np.array([label.preference.get(kind, 0.0) for kind in kinds.dictionary.to_pylist()])
    weights = by_code[kinds.indices.to_numpy()]
    return np.asarray(weights, dtype=np.float64)


def _require_two_classes(rows: LabelledRows, label: Label, log: EventLog) -> None:
    labels = rows.labels[rows.parts == "train"]
    if labels.min() != labels.max():
        return
    problem = f"label `{label.name}` is {labels[0]:g} in all {len(labels):,} training rows: there is nothing to learn"
    counts = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    if isinstance(label, ValueLabel):
        column = "value" if "value" in log.table.column_names else label.value
        numbers = log.table[column].to_numpy().astype(np.float64)
        span = f"it goes from {np.nanmin(numbers):g} to {np.nanmax(numbers):g}"
        raise DataError(f"{problem}; {span}", f"change `label.at_least`, now {label.at_least:g}")
    raise DataError(f"{problem}; the log has {counts}", "check `label`, `event_map` and the time split")


def _numpy(column: pa.ChunkedArray) -> Int64:
    values: Int64 = column.to_numpy()
    return values
