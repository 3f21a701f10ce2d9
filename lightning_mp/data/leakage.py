"""The leakage guard: features that know what a row cannot know are refused, with feature, row and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.chosen_rows import chosen_rows
from lightning_mp.data.history import LABEL, History
from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.point_in_time import PointInTime
from lightning_mp.data.point_in_time_replay import Replay
from lightning_mp.data.rank_auc import rank_auc
from lightning_mp.data.row_pieces import column_pieces
from lightning_mp.data.rows_of_keys import rows_of_keys
from lightning_mp.data.shuffled_rows import shuffled_rows
from lightning_mp.errors import LeakageError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
FEWEST_KEYS = 20
"""Keys, or rows of a class, below which nothing is refused for what may be chance."""


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
    chosen = np.sort(shuffled_rows(len(asked), np.random.default_rng(seed))[:rows])
    for by in dict.fromkeys(history.by for history in histories.values()):
        for few, places in rows_of_keys(_read_by(events, by, histories, flags), by, asked[chosen]):
            replay = Replay(few, flags)
            for name in (name for name, history in histories.items() if history.by == by):
                for place, row in places:
                    found = float(made[name].values[chosen[place]])
                    wanted = replay.value(histories[name], row, made[name].prior_mean)
                    if not np.isclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True):
                        time, number = few["time"][row].as_py(), few["row"][row].as_py()
                        problem = (
                            f"feature `{name}` is {found!r} at row {number:,} ({to_iso(time)}); from earlier events"
                        )
                        hint = "report this log: two ways of counting disagree"
                        raise LeakageError(f"{problem} alone it is {wanted!r}", hint)
    return len(chosen) * len(histories)


def _read_by(
    events: pa.Table, by: tuple[str, ...], histories: Mapping[str, History], flags: tuple[str, ...] | None
) -> pa.Table:
    """The columns that the histories by some keys read."""
    those = [history for history in histories.values() if history.by == by]
    wanted = {*by, "row", "time", "event", *(flags or ()), LABEL, *(history.column for history in those)}
    return events.select([name for name in events.column_names if name in wanted])


def require_known(name: str, known_at: pa.ChunkedArray, samples: Samples) -> None:
    """Refuse a feature whose value came to be at its row's time or later.

    Args:
        name: Of the feature.
        known_at: (N,) int64 UTC microseconds, null where there is no value.
        samples: The rows.

    Raises:
        LeakageError: There is such a row.
    """
    late, ahead, first = 0, 0, (0, 0, 0)
    for place, piece in column_pieces(known_at):
        known = piece.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(known >= samples.time[place])
        if len(rows):
            lag = known[rows] - samples.time[place][rows]
            row = rows[np.lexsort((samples.row[place][rows], samples.time[place][rows]))[0]]
            found = (int(samples.time[place][row]), int(samples.row[place][row]), int(known[row]))
            first = min(first, found) if late else found
            late, ahead = late + len(rows), max(ahead, int(lag.max()))
    if not late:
        return
    time, number, known_from = first
    raise LeakageError(
        f"feature `{name}` comes from the row's time or after it in {late:,} of {len(known_at):,} rows; the first is "
        f"row {number:,}, at {to_iso(time)}, with a value of {to_iso(known_from)}; the furthest lies "
        f"{length_of(ahead)} ahead",
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
        ("by its value", ~missing, values), ("by being missing", np.ones_like(missing), missing.view(np.uint8)),
    ):  # fmt: skip
        labels = chosen_rows(samples.labels, rows) > 0
        positives = int(np.count_nonzero(labels))
        if min(positives, len(labels) - positives) < FEWEST_KEYS:
            continue
        auc = rank_auc(labels, chosen_rows(scores, rows))
        if auc is None or max(auc, 1 - auc) <= largest_auc:
            continue
        first = int(np.flatnonzero(rows)[0])
        shown = "missing" if missing[first] else f"{values[first]:g}"
        raise LeakageError(
            f"feature `{name}` tells the label {what} alone: AUC {max(auc, 1 - auc):.4f} over {rows.sum():,} rows, "
            f"such as row {samples.row[first]:,}, at {to_iso(int(samples.time[first]))}, where it is {shown} and the "
            f"label {samples.labels[first]:g}",
            "drop the feature: it is the label, or what is written when the label is known",
        )


def length_of(microseconds: int) -> str:
    """A length of time in words.

    Args:
        microseconds: From 0 on.

    Example:
        >>> length_of(5_400_000_000)
        '1.5 hours'
    """
    seconds = microseconds / 1e6
    for size, word in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:g} seconds"
