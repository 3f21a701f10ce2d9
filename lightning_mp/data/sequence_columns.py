"""Sequences of items among the features: whose events, in which vocabulary, at which place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_columns import FeatureColumn
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.history import History
from lightning_mp.data.item_sequences import item_sequences
from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.log_rows import LogRows
from lightning_mp.data.row_pieces import column_array, column_pieces, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import Feature

Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
LENGTH = 50
"""Items that a sequence keeps where its `length` is left out."""


def with_sequences(
    specs: Sequence[FeatureSpec],
    made: Sequence[FeatureColumn],
    rows: LogRows,
    positions: npt.NDArray[np.int64],
    columns: Columns,
) -> list[FeatureColumn]:
    """The features with the sequences among them, in the order of the specs.

    Args:
        specs: As declared.
        made: All features but the sequences.
        rows: The log.
        positions: (N,) its labelled rows.
        columns: Where the log keeps what.

    Raises:
        ConfigurationError: There are several sequences, or there is no `id` of the items to tell them by.
        DataError: The log has no event of the kind.
    """
    wanted = [spec for spec in specs if spec.kind == "sequence"]
    if not wanted:
        return list(made)
    if len(wanted) > 1:
        names = " and ".join(f"`{spec.name}`" for spec in wanted)
        raise ConfigurationError(f"{names} are all sequences, and a batch has one `history`", "keep one of them")
    spec, items = wanted[0], [c for c in made if c.feature.kind == "id" and c.feature.role == "item"]
    if len(items) != 1:
        problem = f"feature `{spec.name}` is a sequence of items, and {len(items)} features are the item's `id`"
        raise ConfigurationError(problem, "declare one: {kind: id, role: item}")
    after = {c.feature.name for c in made} & {s.name for s in specs[specs.index(spec) + 1 :]}
    place = next((at for at, column in enumerate(made) if column.feature.name in after), len(made))
    return [*made[:place], _sequence(spec, items[0], rows, positions, columns), *made[place:]]


def _sequence(
    spec: FeatureSpec, item: FeatureColumn, rows: LogRows, positions: npt.NDArray[np.int64], columns: Columns
) -> FeatureColumn:
    past, vocabulary = spec.past, item.vocabulary
    assert past is not None
    assert vocabulary is not None
    is_event = _is_event(past.of, rows, columns)
    if not is_event.any():
        there = ", ".join(f"{kind} {count:,}" for kind, count in rows.log.counts.items())
        problem = f"feature `{spec.name}`: the log has no events of kind `{past.of}`; it has {there}"
        raise DataError(problem, "change `history.of` or `event_map`")
    values = _values(spec, past, rows, is_event, positions=positions, row_of=vocabulary.encode(rows.items.to_pylist()))
    feature = Feature(
        name=spec.name,
        kind="sequence",
        role="user",
        source_dtype=item.feature.source_dtype,
        stored_dtype="int32",
        width=values.shape[1],
        vocabulary_size=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
        window_us=past.window_us,
        delay_us=past.delay_us,
    )
    held, empty, width = 0, 0, values.shape[1]
    for piece in row_pieces(len(values)):
        filled = np.count_nonzero(values[piece], axis=1)
        held, empty = held + int(filled.sum()), empty + int(np.count_nonzero(filled == 0))
    count = max(len(values), 1)
    note = f"{past.of}s of the user, {held / count:.1f} of {width} places filled, {empty / count:.1%} empty"
    return FeatureColumn(feature=feature, values=values, vocabulary=vocabulary, note=note)


def _values(
    spec: FeatureSpec, past: History, rows: LogRows, is_event: Mask, *, positions: npt.NDArray[np.int64], row_of: Codes
) -> Codes:
    """(N, L) vocabulary rows of the labelled rows, some users at a time."""
    length = spec.length or LENGTH
    asked, values = scratch_array(len(rows.user), np.int64), scratch_array((len(positions), length), np.int32)
    asked.fill(-1)
    for piece in row_pieces(len(positions)):
        asked[positions[piece]] = np.arange(piece.start, piece.stop)
    for places in key_buckets(rows.user):
        wanted = np.flatnonzero(asked[places] >= 0)
        values[asked[places][wanted]] = item_sequences(
            rows.user[places],
            rows.time[places],
            row_of[rows.item[places]],
            is_event=is_event[places],
            asked=wanted,
            length=length,
            delay_us=past.delay_us,
            window_us=past.window_us,
        )
    return values


def _is_event(kind: str, rows: LogRows, columns: Columns) -> Mask:
    table = rows.log.table
    if isinstance(columns.event, EventFlags):
        if kind == "impression":
            return np.ones(table.num_rows, dtype=bool)
        if kind not in columns.event.flags:
            return np.zeros(table.num_rows, dtype=bool)
        return column_array(table[kind], np.bool_)
    found = scratch_array(table.num_rows, np.bool_)
    for place, piece in column_pieces(table["event"]):
        found[place] = pc.fill_null(pc.equal(piece, kind), False).to_numpy(zero_copy_only=False)
    return found
