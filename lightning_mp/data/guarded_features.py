"""Features of labelled rows, the histories among them, behind the leakage guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.chosen_rows import chosen_rows, rows_at
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.events import Progress
from lightning_mp.data.feature_columns import FeatureColumn, feature_columns
from lightning_mp.data.feature_spec import FeatureSpec, history_column
from lightning_mp.data.history import LABEL, History
from lightning_mp.data.label import Label, ValueLabel
from lightning_mp.data.labelled_rows import LabelledRows
from lightning_mp.data.leakage import (
    Samples,
    require_known,
    require_no_disguise,
    require_replay,
)
from lightning_mp.data.log_rows import LogRows
from lightning_mp.data.needed_columns import mapped_column
from lightning_mp.data.point_in_time import PointInTime, point_in_time
from lightning_mp.data.row_pieces import ROWS, column_array, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.sequence_columns import with_sequences
from lightning_mp.data.taken_rows import taken_rows
from lightning_mp.data.whole_log_means import require_no_full_history
from lightning_mp.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageGuard:
    """How closely features are looked at before they may be learned from.

    Args:
        replay_rows: Rows whose histories are recomputed by the slow oracle; 0 for none.
        largest_auc: A feature that tells the label better than this, by itself, is refused.

    Raises:
        ConfigurationError: A number outside its range.
    """

    replay_rows: int = 200
    largest_auc: float = 0.99

    def __post_init__(self) -> None:
        if self.replay_rows < 0 or not 0.5 < self.largest_auc <= 1:
            problem = f"`leakage` has replay_rows {self.replay_rows} and largest_auc {self.largest_auc}"
            raise ConfigurationError(problem, "use 200 and 0.99")


def guarded_features(
    specs: Sequence[FeatureSpec],
    rows: LogRows,
    labelled: LabelledRows,
    *,
    columns: Columns,
    label: Label,
    guard: LeakageGuard,
    memory_limit: int | None = None,
    progress: Progress,
) -> tuple[list[FeatureColumn], dict[str, PointInTime]]:
    """Make the features of the labelled rows.

    Args:
        specs: As declared.
        rows: The log.
        labelled: Its labelled rows.
        columns: Where the log keeps what.
        label: What rows are labelled with.
        guard: How closely features are looked at.
        memory_limit: Bytes that sorting the events may take; `None` for what all of them take at once.
        progress: Called with one line of text now and then.

    Returns:
        One entry a feature; and what came of the histories, by name.

    Raises:
        LeakageError: A feature knows what its row cannot know.
        DataError: A feature cannot be made.
    """
    places = labelled.positions
    table = taken_rows(rows.log.table, places)
    seen_by = Samples(
        row=column_array(table["row"], np.int64),
        time=rows_at(rows.time, places),
        labels=labelled.labels,
        user=rows_at(rows.user, places),
        item=rows_at(rows.item, places),
    )
    samples = {name: replace(seen_by, labels=labels) for name, labels in labelled.columns.items()}
    for name, seen in samples.items():
        _look_at_numbers(specs, table, seen, name=name, columns=columns, label=label, guard=guard)
    histories = {spec.name: past for spec in specs if spec.kind != "sequence" and (past := spec.past) is not None}
    made = {}
    if histories:
        made = _histories(
            histories, rows, labelled, columns=columns, label=label, guard=guard, memory_limit=memory_limit,
            progress=progress,
        )  # fmt: skip
    for name, found in made.items():
        table = table.append_column(history_column(name), pa.array(found.values, from_pandas=True))
    training = labelled.training
    features = feature_columns(specs, table, training, columns)
    for feature in features:
        for seen in samples.values() if feature.feature.kind == "categorical" else ():
            _look_at_category(feature, training, seen, guard)
    return with_sequences(specs, features, rows, labelled.positions, columns), made


def _histories(
    histories: Mapping[str, History],
    rows: LogRows,
    labelled: LabelledRows,
    *,
    columns: Columns,
    label: Label,
    guard: LeakageGuard,
    memory_limit: int | None,
    progress: Progress,
) -> dict[str, PointInTime]:
    flags = tuple(columns.event.flags) if isinstance(columns.event, EventFlags) else None
    events = rows.log.table
    for name, numbers in (("user", rows.user), ("item", rows.item), ("time", rows.time)):
        events = events.set_column(events.column_names.index(name), name, pa.array(numbers))
    if flags is not None:
        events = events.append_column("event", _repeated("impression", events.num_rows))
    if any(history.of == LABEL for history in histories.values()):
        if not isinstance(label, ValueLabel):
            problem = "`history: {of: label}` is for a label that is a value of its own row, such as a rating"
            raise ConfigurationError(problem, "use the kind of event, as in `of: click`")
        known = scratch_array(events.num_rows, np.float64)
        known.fill(np.nan)
        for piece in row_pieces(len(labelled.positions)):
            known[labelled.positions[piece]] = labelled.labels[piece]
        events = events.append_column(LABEL, pa.array(known, from_pandas=True))
    mapped = {name: _mapped(history, columns) for name, history in histories.items()}
    made = point_in_time(
        events, mapped, labelled.positions, train_until=labelled.train_until, flags=flags, progress=progress,
        memory_limit=None if memory_limit is None else f"{memory_limit // 1000}KB",
    )  # fmt: skip
    compared = require_replay(events, mapped, made, labelled.positions, flags=flags, rows=guard.replay_rows)
    progress(f"leakage guard: {compared:,} values of histories replayed from earlier events alone, all equal")
    return made


def _repeated(word: str, count: int) -> pa.ChunkedArray:
    """One word in all rows; the pieces share their memory."""
    shared = pa.array([word] * min(count, ROWS))
    return pa.chunked_array([shared.slice(0, piece.stop - piece.start) for piece in row_pieces(count)], pa.string())


def _mapped(history: History, columns: Columns) -> History:
    by = tuple(mapped_column(name, columns) for name in history.by)
    column = None if history.column is None else mapped_column(history.column, columns)
    return History(
        of=history.of, by=by, measure=history.measure, per=history.per, column=column, window=history.window,
        delay=history.delay, prior=history.prior,
    )  # fmt: skip


def _look_at_numbers(
    specs: Sequence[FeatureSpec],
    table: pa.Table,
    samples: Samples,
    *,
    name: str,
    columns: Columns,
    label: Label,
    guard: LeakageGuard,
) -> None:
    targets: dict[str, npt.NDArray[Any]] = {name: samples.labels}
    if isinstance(label, ValueLabel):
        column = "value" if label.value == columns.value else label.value
        reached = f"{label.value} at least {label.at_least:g}"
        targets = {label.value: column_array(table[column], np.float64), reached: samples.labels}
    for spec in specs:
        if spec.known_at is not None:
            require_known(spec.name, table[mapped_column(spec.known_at, columns)], samples)
        if spec.kind == "numeric" and spec.history is None and spec.role != "weight":
            values = column_array(table[spec.table_column(columns) or ""], np.float64)
            require_no_disguise(spec.name, values, samples, guard.largest_auc)
            require_no_full_history(spec.name, values, samples, targets)


def _look_at_category(feature: FeatureColumn, training: np.ndarray, samples: Samples, guard: LeakageGuard) -> None:
    """A category's label means are fitted on the training part and looked at on the later rows."""
    size = feature.feature.vocabulary_size or 1
    total, count = np.zeros(size), np.zeros(size)
    for piece in row_pieces(len(training), 1 << 19):
        codes = feature.values[piece][training[piece]]
        total += np.bincount(codes, samples.labels[piece][training[piece]], minlength=size)
        count += np.bincount(codes, minlength=size)
    means = total / np.maximum(count, 1)
    later = Samples(
        row=chosen_rows(samples.row, ~training), time=chosen_rows(samples.time, ~training),
        labels=chosen_rows(samples.labels, ~training), user=chosen_rows(samples.user, ~training),
        item=chosen_rows(samples.item, ~training),
    )  # fmt: skip
    scores = rows_at(means, chosen_rows(feature.values, ~training))
    require_no_disguise(feature.feature.name, scores, later, guard.largest_auc)
