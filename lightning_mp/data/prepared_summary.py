"""What came of a log, as plain JSON for the store's manifest, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.chosen_rows import chosen_rows, rows_at
from lightning_mp.data.feature_columns import FeatureColumn
from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.labelled_rows import LabelledRows
from lightning_mp.data.log_rows import LogRows
from lightning_mp.data.point_in_time import PointInTime
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.split_gap import split_gap
from lightning_mp.data.time_split import PARTS, TEST, TRAIN

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def prepared_summary(
    rows: LogRows, labelled: LabelledRows, made: Sequence[FeatureColumn], histories: Mapping[str, PointInTime]
) -> dict[str, Any]:
    """Counts, parts, what was filled and refused, and what a random split would have promised.

    Args:
        rows: The log.
        labelled: Its labelled rows.
        made: The features.
        histories: What came of the histories, by name of the feature.
    """
    log, place = rows.log, labelled.positions
    user, item = rows_at(rows.user, place), rows_at(rows.item, place)
    known = {"new_users": _seen(user, labelled, len(rows.users)), "new_items": _seen(item, labelled, len(rows.items))}
    parts: dict[str, dict[str, Any]] = {}
    for number, part in enumerate(PARTS):
        inside = labelled.parts == number
        if inside.any():
            time = rows_at(rows.time, chosen_rows(place, inside))
            parts[part] = {
                "rows": len(time),
                "label_mean": _mean(labelled.labels, inside),
                "label_means": {name: _mean(labels, inside) for name, labels in labelled.columns.items()},
                "from": to_iso(int(time.min())),
                "to": to_iso(int(time.max())),
                "new_users": _unseen(user, known["new_users"], inside),
                "new_items": _unseen(item, known["new_items"], inside),
            }
    looked_at = [
        c.values for c in made if c.feature.role != "weight" and c.feature.kind not in ("sequence", "multi_categorical")
    ]
    gap = split_gap(looked_at, labelled.labels, labelled.parts == TEST)
    return {
        "digest": log.digest,
        "rows": log.rows,
        "rejected": log.rejected,
        "rejects": log.rejects.slice(0, 100).to_pylist(),
        "counts": log.counts,
        "ignored": log.ignored,
        "time_formats": log.time_formats,
        "log_notes": rows.notes,
        "parts": parts,
        "embargoed": labelled.embargoed,
        "censored": labelled.censored,
        "split_gap": None if gap is None else {"time": gap[0], "random": gap[1]},
        "notes": {column.feature.name: column.note for column in made},
        "filled": {column.feature.name: column.filled for column in made if column.filled},
        "fills": {column.feature.name: column.fill.to_record() for column in made if column.fill is not None},
        "histories": {
            name: {"sql": history.sql, "prior_mean": history.prior_mean} for name, history in histories.items()
        },
    }


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """The parts of the split, and what they hide, in words."""
    for name, part in summary["parts"].items():
        span = f"{part['from']} to {part['to']}"
        new = (
            ""
            if name == "train"
            else f", {part['new_users']:.1%} of rows of new users, {part['new_items']:.1%} of new items"
        )
        means = ", ".join(f"mean of label `{label}` {mean:.4f}" for label, mean in part["label_means"].items())
        yield f"{name}: {part['rows']:,} rows, {span}, {means}{new}"
    yield from hidden_lines(summary)


def hidden_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """What the parts do not show: the rows that were left out, and what a random split would have promised.

    Args:
        summary: As `prepared_summary` gives it; a store that was made in another way has nothing to tell.
    """
    if summary.get("embargoed"):
        yield f"embargo: {summary['embargoed']:,} rows before the cuts belong to no part"
    if summary.get("censored"):
        yield f"{summary['censored']:,} test rows have a label window that ends after the log: theirs may come too low"
    gap = summary.get("split_gap")
    if gap is not None:
        yield (
            f"the simplest model has AUC {gap['time']:.3f} split by time, {gap['random']:.3f} split at random: "
            f"a random split would promise {gap['random'] - gap['time']:+.3f}"
        )


def _mean(labels: npt.NDArray[np.float32], inside: Mask) -> float:
    return float(chosen_rows(labels, inside).mean())


def _seen(codes: Int64, labelled: LabelledRows, size: int) -> Mask:
    """Which codes the training part has."""
    seen = np.zeros(size, dtype=bool)
    for piece in row_pieces(len(codes)):
        seen[codes[piece][labelled.parts[piece] == TRAIN]] = True
    return seen


def _unseen(codes: Int64, seen: Mask, inside: Mask) -> float:
    """Share of a part's rows whose code the training part does not have."""
    found = sum(int(np.count_nonzero(~seen[codes[piece][inside[piece]]])) for piece in row_pieces(len(codes)))
    return found / int(np.count_nonzero(inside))
