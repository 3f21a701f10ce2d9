"""From events to labelled rows: which rows are samples, their label, and their part of the time split."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.chosen_rows import chosen_places, chosen_rows, rows_at
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.event_label import followed_by
from lightning_mp.data.events import EventLog
from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.label import EventLabel, Label, PreferenceLabel, TakenLabel, TasksLabel, ValueLabel
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.data.preference_labels import preference_labels
from lightning_mp.data.row_pieces import column_array, column_pieces, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.time_split import NO_PART, TEST, TRAIN, TimeSplit
from lightning_mp.errors import ConfigurationError, DataError

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Split = TimeSplit | LeaveLastOut


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRows:
    """Samples of a log.

    Attributes:
        positions: (N,) int64, rows of the log's table, ascending.
        columns: (N,) float32 in [0, 1] by name: one label, or one a task.
        parts: (N,) place of each row's part in `time_split.PARTS`.
        train_until: First time that is no longer training.
        embargoed: Rows left out because they stand too close before a cut.
        censored: Test rows whose label looks beyond the end of the log.
    """

    positions: Int64
    columns: dict[str, Float32]
    parts: npt.NDArray[np.int8]
    train_until: int = 0
    embargoed: int = 0
    censored: int = 0

    @property
    def labels(self) -> Float32:
        """(N,) float32: the label, or that of the first task."""
        return next(iter(self.columns.values()))

    @property
    def training(self) -> Mask:
        """(N,) which rows are of the training part."""
        return np.asarray(self.parts == TRAIN)


def labelled_rows(
    log: EventLog, pair: Int64, *, user: Int64, time: Int64, columns: Columns, label: Label, split: Split
) -> LabelledRows:
    """Label a log's rows and split them.

    Args:
        log: As read, with the value column of a `ValueLabel` among its columns.
        pair: (rows of the table,) code of user and item.
        user: (rows of the table,) code of the user.
        time: (rows of the table,) UTC microseconds.
        columns: Where the file kept what.
        label: What counts.
        split: Where the parts begin.

    Raises:
        ConfigurationError: The label names a kind or column that the log does not have.
        DataError: No row can be labelled, a part is empty, or all training rows have the same label.
    """
    horizon = 0
    if isinstance(label, PreferenceLabel):
        rows = _by_preference(log, pair, time, columns, label, split=split)
    else:
        made: dict[str, Float32]
        if isinstance(label, ValueLabel):
            positions, labels = _by_value(log.table[_value_column(columns, label)], label)
            made = {label.name: labels}
        elif isinstance(label, TakenLabel):
            positions = _taken(log, columns, label)
            made = {label.name: scratch_array(len(positions), np.float32)}
            made[label.name].fill(1.0)
        else:
            made = {}
            for event in label.events if isinstance(label, TasksLabel) else (label,):
                positions, made[event.name], horizon = _by_event(log, pair, time, columns, event)
        if isinstance(split, LeaveLastOut):
            parts = split.codes(rows_at(user, positions), rows_at(time, positions))
        else:
            parts = split.codes(rows_at(time, positions), horizon_us=horizon)
        rows = LabelledRows(positions=positions, columns=made, parts=parts)
    rows = _without_embargo(rows, time, horizon)
    if not isinstance(label, TakenLabel):
        _require_two_classes(rows, label, log)
    return rows


def _without_embargo(rows: LabelledRows, time: Int64, horizon: int) -> LabelledRows:
    until, late, cut = int(time.max()), 0, int(np.iinfo(np.int64).max)
    for piece in row_pieces(len(rows.positions)):
        times, parts = time[rows.positions[piece]], rows.parts[piece]
        late += int(np.count_nonzero((parts == TEST) & (times > until - horizon)))
        cut = min(cut, int(times[parts != TRAIN].min(initial=cut)))
    kept = rows.parts != NO_PART
    embargoed = len(kept) - int(np.count_nonzero(kept))
    if embargoed:
        rows = replace(
            rows,
            positions=chosen_rows(rows.positions, kept),
            columns={name: chosen_rows(labels, kept) for name, labels in rows.columns.items()},
            parts=chosen_rows(rows.parts, kept),
        )
    return replace(rows, train_until=cut, embargoed=embargoed, censored=late)


def _value_column(columns: Columns, label: ValueLabel) -> str:
    return "value" if label.value == columns.value else label.value


def _by_value(values: pa.ChunkedArray, label: ValueLabel) -> tuple[Int64, Float32]:
    numbers = column_array(values, np.float64)
    positions = chosen_places(~np.isnan(numbers))
    if not len(positions):
        raise DataError(
            f"label: column `{label.value}` is missing in every row", "name another column in `label.value`"
        )
    return positions, _labels(numbers >= label.at_least, positions)


def _labels(positive: Mask, positions: Int64) -> Float32:
    labels = scratch_array(len(positions), np.float32)
    for piece in row_pieces(len(positions)):
        labels[piece] = positive[positions[piece]]
    return labels


def _taken(log: EventLog, columns: Columns, label: TakenLabel) -> Int64:
    if isinstance(columns.event, EventFlags):
        _require_flag(columns.event, label.taken)
        return chosen_places(column_array(log.table[label.taken], np.bool_))
    if not log.counts.get(label.taken):
        there = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
        problem = f"label: the log has no events of kind `{label.taken}`; it has {there}"
        raise DataError(problem, "change `label.taken` or `event_map`")
    return chosen_places(_is(log.table, label.taken))


def _require_flag(event: EventFlags, kind: str) -> None:
    if kind not in event.flags:
        problem = f"label: no flag column is mapped to `{kind}`; mapped are {', '.join(event.flags)}"
        raise ConfigurationError(problem, f"map it: `columns.event.flags: {{{kind}: its column}}`")


def _by_event(
    log: EventLog, pair: Int64, time: Int64, columns: Columns, label: EventLabel
) -> tuple[Int64, Float32, int]:
    """Positions, labels, and how far the labels look ahead."""
    there = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    if isinstance(columns.event, EventFlags):
        _require_flag(columns.event, label.event)
        return chosen_places(np.ones(len(time), dtype=bool)), column_array(log.table[label.event], np.float32), 0
    drawn = log.table["event"].null_count > 0
    per = label.event if drawn else label.per or ("impression" if log.counts.get("impression") else "view")
    for kind in (per, label.event):
        if not log.counts.get(kind):
            problem = f"label: the log has no events of kind `{kind}`; it has {there}"
            raise DataError(problem, "change `label.event`, `label.per` or `event_map`")
    is_event = _is(log.table, label.event)
    if drawn:
        positions = chosen_places(is_event | _is(log.table, None))
        return positions, _labels(is_event, positions), 0
    is_row, found = _is(log.table, per), scratch_array(len(time), np.bool_)
    for places in key_buckets(pair):
        found[places] = followed_by(
            pair[places],
            time[places],
            is_event[places],
            label.within_us,
            is_row=is_row[places],
            last_touch=label.credit == "last",
        )
    positions = chosen_places(is_row)
    return positions, _labels(found, positions), label.within_us


def _is(table: pa.Table, kind: str | None) -> Mask:
    """Rows of a kind; of none for `None`."""
    found = scratch_array(table.num_rows, np.bool_)
    for place, piece in column_pieces(table["event"]):
        equal = piece.is_null() if kind is None else pc.fill_null(pc.equal(piece, kind), False)
        found[place] = equal.to_numpy(zero_copy_only=False)
    return found


def _by_preference(
    log: EventLog, pair: Int64, time: Int64, columns: Columns, label: PreferenceLabel, *, split: Split
) -> LabelledRows:
    if isinstance(split, LeaveLastOut):
        problem = "a preference is that of a pair's events of one part, and `split.leave_out` cuts between them"
        raise ConfigurationError(problem, "split by time")
    parts = split.codes(time)
    positions, labels = preference_labels(log.table, pair, time, parts, columns=columns, label=label)
    return LabelledRows(positions=positions, columns={label.name: labels}, parts=rows_at(parts, positions))


def _require_two_classes(rows: LabelledRows, label: Label, log: EventLog) -> None:
    training = {name: chosen_rows(labels, rows.training) for name, labels in rows.columns.items()}
    name = next((name for name, labels in training.items() if labels.min() == labels.max()), None)
    if name is None:
        return
    labels = training[name]
    problem = f"label `{name}` is {labels[0]:g} in all {len(labels):,} training rows: there is nothing to learn"
    counts = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    if isinstance(label, ValueLabel):
        column = "value" if "value" in log.table.column_names else label.value
        numbers = column_array(log.table[column], np.float64)
        span = f"it goes from {np.nanmin(numbers):g} to {np.nanmax(numbers):g}"
        raise DataError(f"{problem}; {span}", f"change `label.at_least`, now {label.at_least:g}")
    raise DataError(f"{problem}; the log has {counts}", "check `label`, `event_map` and the time split")
