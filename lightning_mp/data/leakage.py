"""The leakage guard: features that know what a row cannot know are refused, with feature, row and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.history import History
from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.point_in_time import PointInTime
from lightning_mp.data.point_in_time_replay import Replay
from lightning_mp.data.rank_auc import rank_auc
from lightning_mp.errors import LeakageError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
_LIKE: float = 0.999
"""Correlation of keys' values with the keys' means over the whole log from which on they are taken to be those."""
_FEWEST_KEYS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What the guard looks at: the labelled rows.

    Attributes:
        row: (N,) int64, row of each in the log.
        time: (N,) int64 UTC microseconds.
        labels: (N,) in [0, 1].
        user: (N,) codes.
        item: (N,) codes.
    """

    row: Int64
    time: Int64
    labels: npt.NDArray[np.float32]
    user: Int64
    item: Int64


def require_replay(
    events: pa.Table,
    histories: Mapping[str, History],
    made: Mapping[str, PointInTime],
    asked: Int64,
    *,
    flags: tuple[str, ...] | None,
    rows: int = 200,
    seed: int = 0,
) -> int:
    """Recompute histories of some rows by the slow oracle, one row at a time, and compare.

    Args:
        events: What the histories were made of.
        histories: By name of the feature.
        made: What came of them.
        asked: (N,) rows of `events` that they were asked for.
        flags: Kinds that have a flag column (wide form); `None` for the long form.
        rows: How many rows are looked at.
        seed: Of their choice.

    Returns:
        How many values were compared.

    Raises:
        LeakageError: One differs.
    """
    replay = Replay(events, flags)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(asked))[:rows])
    for name, history in histories.items():
        for place in chosen.tolist():
            row, found = int(asked[place]), float(made[name].values[place])
            wanted = replay.value(history, row, made[name].prior_mean)
            if not np.isclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True):
                time, number = events["time"][row].as_py(), events["row"][row].as_py()
                problem = f"feature `{name}` is {found!r} at row {number:,} ({to_iso(time)}); from earlier events alone"
                raise LeakageError(f"{problem} it is {wanted!r}", "report this log: two ways of counting disagree")
    return len(chosen) * len(histories)


def require_known(name: str, known_at: pa.ChunkedArray, samples: Samples) -> None:
    """Refuse a feature whose value came to be at its row's time or later.

    Args:
        name: Of the feature.
        known_at: (N,) int64 UTC microseconds, null where there is no value.
        samples: The rows.

    Raises:
        LeakageError: There is such a row.
    """
    known = known_at.fill_null(np.iinfo(np.int64).min).to_numpy()
    late = np.flatnonzero(known >= samples.time)
    if not len(late):
        return
    first = late[np.lexsort((samples.row[late], samples.time[late]))[0]]
    ahead = int((known[late] - samples.time[late]).max())
    raise LeakageError(
        f"feature `{name}` comes from the row's time or after it in {len(late):,} of {len(known):,} rows; the first is "
        f"row {samples.row[first]:,}, at {to_iso(int(samples.time[first]))}, with a value of "
        f"{to_iso(int(known[first]))}; the furthest lies {_length(ahead)} ahead",
        "join the value that was known before the row (`items` or `users` with `time`), or make a `history`",
    )


def require_no_disguise(name: str, values: Float64, samples: Samples, largest_auc: float) -> None:
    """Refuse a number that tells the label by itself: the label under another name.

    Args:
        name: Of the feature.
        values: (N,) NaN where missing; being missing is looked at, too.
        samples: The rows.
        largest_auc: From which AUC on (or from which down, mirrored) it is refused.

    Raises:
        LeakageError: It does.
    """
    missing = np.isnan(values)
    for what, rows, scores in (
        ("by its value", ~missing, values), ("by being missing", np.ones_like(missing), missing.astype(np.float64)),
    ):  # fmt: skip
        labels = samples.labels[rows] > 0
        auc = rank_auc(labels, scores[rows])
        if auc is None or max(auc, 1 - auc) <= largest_auc or min(labels.sum(), (~labels).sum()) < _FEWEST_KEYS:
            continue
        first = int(np.flatnonzero(rows)[0])
        shown = "missing" if missing[first] else f"{values[first]:g}"
        raise LeakageError(
            f"feature `{name}` tells the label {what} alone: AUC {max(auc, 1 - auc):.4f} over {rows.sum():,} rows, "
            f"such as row {samples.row[first]:,}, at {to_iso(int(samples.time[first]))}, where it is {shown} and the "
            f"label {samples.labels[first]:g}",
            "drop the feature: it is the label, or what is written when the label is known",
        )


def require_no_full_history(name: str, values: Float64, samples: Samples, targets: Mapping[str, Float64]) -> None:
    """Refuse a number of a user or an item that is a mean, or a count, over the whole log, later rows included.

    Args:
        name: Of the feature.
        values: (N,) NaN where missing.
        samples: The rows.
        targets: (N,) columns whose means are looked for, such as the label.

    Raises:
        LeakageError: It is.
    """
    present = ~np.isnan(values)
    for who, codes in (("user", samples.user), ("item", samples.item)):
        keys, place = np.unique(codes[present], return_inverse=True)
        counts = np.bincount(place)
        often = counts[place] > 1
        if np.count_nonzero(counts > 1) < _FEWEST_KEYS or not len(keys):
            continue
        for what, made in _whole_log(place, counts, {k: v[present] for k, v in targets.items()}):
            if not _alike(values[present][often], made[often]):
                continue
            last = np.full(len(keys), np.iinfo(np.int64).min)
            np.maximum.at(last, place, samples.time[present])
            ahead = last[place] - samples.time[present]
            seeing = np.flatnonzero(ahead > 0)
            first = seeing[np.lexsort((samples.row[present][seeing], samples.time[present][seeing]))[0]]
            raise LeakageError(
                f"feature `{name}` is {what} by {who} over the whole log, rows to come included: {len(seeing):,} of "
                f"{len(values):,} rows see ahead; the first is row {samples.row[present][first]:,}, at "
                f"{to_iso(int(samples.time[present][first]))}, which knows of rows until "
                f"{to_iso(int(last[place][first]))}; the furthest sees {_length(int(ahead.max()))} ahead",
                f"use what came before each row: `history: {{of: ..., by: [{who}], as: mean}}`",
            )


def _whole_log(place: Int64, counts: Int64, targets: Mapping[str, Float64]) -> list[tuple[str, Float64]]:
    """What is looked for: means with the row's own value and without it, and how many rows there are."""
    made = []
    for target, numbers in targets.items():
        given = ~np.isnan(numbers)
        clean = np.where(given, numbers, 0.0)
        total, size = np.bincount(place, clean)[place], np.bincount(place, given)[place]
        made.append((f"the mean of `{target}`", total / np.maximum(size, 1)))
        made.append((f"the mean of `{target}` in the other rows", (total - clean) / np.maximum(size - given, 1)))
    return [*made, ("the number of rows", counts[place].astype(np.float64))]


def _alike(values: Float64, made: Float64) -> bool:
    if len(values) < _FEWEST_KEYS or np.ptp(values) == 0 or np.ptp(made) == 0:
        return False
    return bool(abs(np.corrcoef(values, made)[0, 1]) > _LIKE)


def _length(microseconds: int) -> str:
    seconds = microseconds / 1e6
    for size, word in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:g} seconds"
