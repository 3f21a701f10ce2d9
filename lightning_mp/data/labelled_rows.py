"""From events to labelled rows: which rows are samples, their label, and their part of the time split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.durations import duration_us
from lightning_mp.data.event_label import followed_by
from lightning_mp.data.events import EventLog
from lightning_mp.data.label import EventLabel, Label, PreferenceLabel, TakenLabel, TasksLabel, ValueLabel
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.data.preference import preference_scores
from lightning_mp.data.time_split import EMBARGO, PARTS, TimeSplit
from lightning_mp.errors import ConfigurationError, DataError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Split = TimeSplit | LeaveLastOut


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    """Samples of a log.

    Attributes:
        positions: (N,) int64, rows of the log's table, ascending.
        columns: (N,) float32 in [0, 1] by name: one label, or one a task.
        parts: (N,) text: `train`, `validation` or `test`.
        train_until: First time that is no longer training.
        embargoed: Rows left out because they stand too close before a cut.
        censored: Test rows whose label looks beyond the end of the log.
    """

    positions: Int64
    columns: dict[str, Float32]
    parts: npt.NDArray[np.str_]
    train_until: int = 0
    embargoed: int = 0
    censored: int = 0

    @property
    def labels(self) -> Float32:
        """(N,) float32: the label, or that of the first task."""
        return next(iter(self.columns.values()))


def labelled_rows(
    log: EventLog, pair: Int64, *, user: Int64, columns: Columns, label: Label, split: Split
) -> LabelledRows:
    """Label a log's rows and split them.

    Args:
        log: As read, with the value column of a `ValueLabel` among its columns.
        pair: (rows of the table,) code of user and item.
        user: (rows of the table,) code of the user.
        columns: Where the file kept what.
        label: What counts.
        split: Where the parts begin.

    Raises:
        ConfigurationError: The label names a kind or column that the log does not have.
        DataError: No row can be labelled, a part is empty, or all training rows have the same label.
    """
    time, horizon = _numpy(log.table["time"]), 0
    if isinstance(label, PreferenceLabel):
        rows = _by_preference(log, pair, columns, label, split)
    else:
        made: dict[str, Float32]
        if isinstance(label, ValueLabel):
            positions, labels = _by_value(log.table[_value_column(columns, label)], label)
            made = {label.name: labels}
        elif isinstance(label, TakenLabel):
            positions = _taken(log, columns, label)
            made = {label.name: np.ones(len(positions), dtype=np.float32)}
        else:
            made = {}
            for event in label.events if isinstance(label, TasksLabel) else (label,):
                positions, made[event.name], horizon = _by_event(log, pair, columns, event)
        if isinstance(split, LeaveLastOut):
            parts = split.parts(user[positions], time[positions])
        else:
            parts = split.parts(time[positions], horizon_us=horizon)
        rows = LabelledRows(positions=positions, columns=made, parts=parts)
    rows = _without_embargo(rows, time, horizon)
    if not isinstance(label, TakenLabel):
        _require_two_classes(rows, label, log)
    return rows


def _without_embargo(rows: LabelledRows, time: Int64, horizon: int) -> LabelledRows:
    times, kept = time[rows.positions], rows.parts != EMBARGO
    late = (rows.parts == "test") & (times > time.max() - horizon)
    return replace(
        rows,
        positions=rows.positions[kept],
        columns={name: labels[kept] for name, labels in rows.columns.items()},
        parts=rows.parts[kept],
        train_until=int(times[rows.parts != "train"].min()),
        embargoed=int(np.count_nonzero(~kept)),
        censored=int(np.count_nonzero(late)),
    )


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


def _taken(log: EventLog, columns: Columns, label: TakenLabel) -> Int64:
    if isinstance(columns.event, EventFlags):
        _require_flag(columns.event, label.taken)
        return np.flatnonzero(log.table[label.taken].to_numpy())
    if not log.counts.get(label.taken):
        there = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
        problem = f"label: the log has no events of kind `{label.taken}`; it has {there}"
        raise DataError(problem, "change `label.taken` or `event_map`")
    return np.flatnonzero(_is(log.table, label.taken))


def _require_flag(event: EventFlags, kind: str) -> None:
    if kind not in event.flags:
        problem = f"label: no flag column is mapped to `{kind}`; mapped are {', '.join(event.flags)}"
        raise ConfigurationError(problem, f"map it: `columns.event.flags: {{{kind}: its column}}`")


def _by_event(log: EventLog, pair: Int64, columns: Columns, label: EventLabel) -> tuple[Int64, Float32, int]:
    """Positions, labels, and how far the labels look ahead."""
    there = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    if isinstance(columns.event, EventFlags):
        _require_flag(columns.event, label.event)
        flags = log.table[label.event].to_numpy().astype(np.float32)
        return np.arange(len(flags), dtype=np.int64), flags, 0
    drawn = log.table["event"].null_count > 0
    per = label.event if drawn else label.per or ("impression" if log.counts.get("impression") else "view")
    for kind in (per, label.event):
        if not log.counts.get(kind):
            problem = f"label: the log has no events of kind `{kind}`; it has {there}"
            raise DataError(problem, "change `label.event`, `label.per` or `event_map`")
    is_event = _is(log.table, label.event)
    if drawn:
        positions = np.flatnonzero(is_event | log.table["event"].is_null().to_numpy())
        return positions, is_event[positions].astype(np.float32), 0
    is_row = _is(log.table, per)
    found = followed_by(
        pair,
        _numpy(log.table["time"]),
        is_event,
        label.within_us,
        is_row=is_row,
        last_touch=label.credit == "last",
    )
    positions = np.flatnonzero(is_row)
    return positions, found[positions].astype(np.float32), label.within_us


def _is(table: pa.Table, kind: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(pc.equal(table["event"], kind), False).to_numpy()
    return found


def _by_preference(log: EventLog, pair: Int64, columns: Columns, label: PreferenceLabel, split: Split) -> LabelledRows:
    if isinstance(split, LeaveLastOut):
        problem = "a preference is that of a pair's events of one part, and `split.leave_out` cuts between them"
        raise ConfigurationError(problem, "split by time")
    time, weights = _numpy(log.table["time"]), _weights(log.table, columns, label)
    parts = split.parts(time)
    half_life = duration_us(label.half_life, name="label.half_life") if label.rule == "decayed_sum" else None
    # Part by part: a pair's events of the test part must not raise its label in the training part.
    found = []
    for part in PARTS:
        inside = np.flatnonzero(parts == part)
        rows, scores = preference_scores(pair[inside], time[inside], weights[inside], half_life_us=half_life)
        found.append((inside[rows], scores))
    top = max(label.preference.values())
    if half_life is not None and (found[0][1] > 0).any():
        top = float(np.quantile(found[0][1][found[0][1] > 0], 0.99))
    positions = np.concatenate([rows for rows, _ in found])
    order = np.argsort(positions)
    positions = positions[order]
    labels = np.minimum(np.concatenate([scores for _, scores in found])[order] / top, 1.0).astype(np.float32)
    return LabelledRows(positions=positions, columns={label.name: labels}, parts=parts[positions])


def _weights(table: pa.Table, columns: Columns, label: PreferenceLabel) -> npt.NDArray[np.float64]:
    if isinstance(columns.event, EventFlags):
        weights = np.full(table.num_rows, label.preference.get("impression", 0.0))
        for kind in columns.event.flags:
            flags = table[kind].to_numpy()
            weights = np.maximum(weights, np.where(flags, label.preference.get(kind, 0.0), 0.0))
        return weights
    weights = np.zeros(table.num_rows)
    for kind, weight in label.preference.items():
        weights[_is(table, kind)] = weight
    return weights


def _require_two_classes(rows: LabelledRows, label: Label, log: EventLog) -> None:
    training = {name: labels[rows.parts == "train"] for name, labels in rows.columns.items()}
    name = next((name for name, labels in training.items() if labels.min() == labels.max()), None)
    if name is None:
        return
    labels = training[name]
    problem = f"label `{name}` is {labels[0]:g} in all {len(labels):,} training rows: there is nothing to learn"
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
