"""What came of a log, as plain JSON for the store's manifest, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lightning_mp.data.feature_columns import FeatureColumn
from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.labelled_rows import LabelledRows
from lightning_mp.data.log_rows import LogRows
from lightning_mp.data.point_in_time import PointInTime
from lightning_mp.data.split_gap import split_gap
from lightning_mp.data.time_split import PARTS


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
    time, user, item = log.table["time"].to_numpy()[place], rows.user[place], rows.item[place]
    training = labelled.parts == "train"
    parts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        inside = labelled.parts == part
        if inside.any():
            parts[part] = {
                "rows": int(inside.sum()),
                "label_mean": float(labelled.labels[inside].mean()),
                "label_means": {name: float(labels[inside].mean()) for name, labels in labelled.columns.items()},
                "from": to_iso(int(time[inside].min())),
                "to": to_iso(int(time[inside].max())),
                "new_users": _unseen(user, training, inside),
                "new_items": _unseen(item, training, inside),
            }
    looked_at = [
        c.values for c in made if c.feature.role != "weight" and c.feature.kind not in ("sequence", "multi_categorical")
    ]
    gap = split_gap(looked_at, labelled.labels, labelled.parts)
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


def _unseen(codes: np.ndarray, training: np.ndarray, inside: np.ndarray) -> float:
    seen = np.zeros(int(codes.max()) + 1, dtype=bool)
    seen[codes[training]] = True
    return float((~seen[codes[inside]]).mean())
