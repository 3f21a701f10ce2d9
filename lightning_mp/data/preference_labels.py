"""The rows that a preference is the label of: a pair's first event in each part of the split."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.chosen_rows import chosen_places, chosen_rows
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.durations import duration_us
from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.label import PreferenceLabel
from lightning_mp.data.preference import preference_scores
from lightning_mp.data.row_pieces import column_pieces, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.time_split import PARTS, TRAIN

Int64 = npt.NDArray[np.int64]


def preference_labels(
    table: pa.Table,
    pair: Int64,
    time: Int64,
    parts: npt.NDArray[np.int8],
    *,
    columns: Columns,
    label: PreferenceLabel,
) -> tuple[Int64, npt.NDArray[np.float32]]:
    """Label the pairs of each part.

    Args:
        table: Of the log.
        pair: (rows of the table,) code of user and item.
        time: (rows of the table,) UTC microseconds.
        parts: (rows of the table,) place of each row's part in `PARTS`.
        columns: Where the file kept what.
        label: What counts.

    Returns:
        (P,) rows of the table, ascending; (P,) labels in [0, 1].
    """
    weights = _weights(table, columns, label)
    half_life = duration_us(label.half_life, name="label.half_life") if label.rule == "decayed_sum" else None
    first, score = scratch_array(len(time), np.bool_), scratch_array(len(time), np.float64)
    first.fill(False)
    # Part by part: a pair's events of the test part must not raise its label in the training part.
    for part in range(len(PARTS)):
        for bucket in key_buckets(pair):
            places = bucket[parts[bucket] == part]
            rows, scores = preference_scores(pair[places], time[places], weights[places], half_life_us=half_life)
            first[places[rows]], score[places[rows]] = True, scores
    top = max(label.preference.values())
    if half_life is not None:
        trained = chosen_rows(score, first & (parts == TRAIN))
        trained = chosen_rows(trained, trained > 0)
        top = float(np.quantile(trained, 0.99, overwrite_input=True)) if len(trained) else top
    positions = chosen_places(first)
    labels = scratch_array(len(positions), np.float32)
    for piece in row_pieces(len(positions)):
        labels[piece] = np.minimum(score[positions[piece]] / top, 1.0)
    return positions, labels


def _weights(table: pa.Table, columns: Columns, label: PreferenceLabel) -> npt.NDArray[np.float64]:
    weights = scratch_array(table.num_rows, np.float64)
    weights.fill(label.preference.get("impression", 0.0) if isinstance(columns.event, EventFlags) else 0.0)
    if isinstance(columns.event, EventFlags):
        for kind in columns.event.flags:
            for place, piece in column_pieces(table[kind]):
                given = piece.to_numpy(zero_copy_only=False) * label.preference.get(kind, 0.0)
                np.maximum(weights[place], given, out=weights[place])
        return weights
    for place, piece in column_pieces(table["event"]):
        for kind, weight in label.preference.items():
            weights[place][pc.fill_null(pc.equal(piece, kind), False).to_numpy(zero_copy_only=False)] = weight
    return weights
