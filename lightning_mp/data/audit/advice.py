"""What to do with a column: its stored type, its transform, and why; judged again after the transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from lightning_mp.data import transforms
from lightning_mp.data.audit.bins import BINS, HIGH, LOW, ORDER, Counts, filled
from lightning_mp.data.audit.column_names import is_key
from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.score import Policy, column_score, scale_ratio
from lightning_mp.data.audit.statistics import ColumnStatistics, FormatStatistics
from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.data.audit.weighted_statistics import weighted_statistics
from lightning_mp.schema import Transform, TransformKind

Float64 = npt.NDArray[np.float64]
_POINTS: Final = 4096
_GOLDEN: Final = 0.6180339887498949
Stored = Literal["float16", "float32", "int32", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How to store a column for a policy.

    Args:
        stored: The smallest type that keeps it: `int32` for keys, `drop` for what says nothing.
        transform: Its kind, and constants fitted to the histogram.
        reason: One line.
        score: Compatibility score after the transform; `None` where there is nothing to score.
        formats: What each format makes of the transformed column, from the histogram's bin centres.
    """

    stored: Stored
    transform: Transform
    reason: str
    score: float | None = None
    formats: dict[str, FormatStatistics] | None = None


def advise(
    name: str | None, state: NumberState, statistics: ColumnStatistics, thresholds: Thresholds, policy: Policy
) -> Advice:
    """Choose a transform from the histogram alone, and judge the column again behind it.

    Args:
        name: Of the column; `None` for a quantity, which is not to be taken for a key.
        state: Of the column.
        statistics: Read off that state.
        thresholds: From where on a number is out of bounds.
        policy: What the column is to be cast to.
    """
    if not statistics.finite:
        return Advice(stored="drop", transform=Transform(), reason="it holds no number")
    if statistics.minimum == statistics.maximum:
        return Advice(stored="drop", transform=Transform(), reason="it holds one number alone, and says nothing")
    if statistics.beyond_float32 == statistics.finite:
        return Advice(stored="drop", transform=Transform(), reason="it is infinite in float32: divide it before")
    if name is not None and looks_like_key(name, statistics):
        return Advice(
            stored="int32", transform=Transform(), reason="it is a key: make it an `id` or `categorical` feature"
        )
    kind, reason = _kind(statistics, thresholds)
    best: Advice | None = None
    for tried, words in (
        (kind, reason),
        ("quantile", "its places among the rows: no other transform brings it into range"),
    ):
        advice = _judged(tried, words, state, statistics, policy)
        if best is None or (advice.score or 0.0) > (best.score or 0.0) + 20.0:
            best = advice
        if (best.score or 0.0) >= 80.0:
            break
    assert best is not None
    return best


def looks_like_key(name: str, statistics: ColumnStatistics) -> bool:
    """Whether a column of integers is a key rather than a quantity: by its name, or since nearly every row has its own.

    Args:
        name: Of the column.
        statistics: Of the column.
    """
    if not statistics.whole or statistics.finite < 2:
        return False
    large = (statistics.largest_magnitude or 0.0) > 2048
    return (is_key(name) and statistics.distinct > 2) or (large and statistics.distinct > 0.9 * statistics.finite > 90)


def _kind(statistics: ColumnStatistics, thresholds: Thresholds) -> tuple[TransformKind, str]:
    largest = statistics.largest_magnitude or 0.0
    ratio = scale_ratio(statistics) or 1.0
    zeros = statistics.zero_share or 0.0
    signed = statistics.negatives > 0
    if zeros >= thresholds.burst_zero_share and largest > thresholds.burst_ratio:
        return (
            ("signed_log", "zeros and rare bursts of both signs") if signed
            else ("log1p_flag", "zeros and rare bursts: their logarithm, and whether there is one")
        )  # fmt: skip
    if largest < 2.0**-6:
        return "power_of_two", "tiny numbers: an exact scale lifts them into float16's normal range"
    centre = statistics.quantiles["0.5"]
    span = max((statistics.maximum or 0.0) - centre, centre - (statistics.minimum or 0.0))
    # What the transform clips to; where more rows lie beyond, they are no outliers.
    middle = statistics.quantiles["0.999"] - statistics.quantiles["0.001"]
    # Numbers on both sides of zero come near it without being spread over magnitudes.
    usual = thresholds.ratio if signed else 100.0
    if middle and span > 50.0 * middle and (statistics.typical_ratio or 1e9) < usual:
        return "robust_clip", "few numbers lie far outside the others"
    if ratio > thresholds.ratio or (largest > 2048.0 and ratio > 100.0):
        return ("signed_log", "both signs over many magnitudes") if signed else ("log1p_zscore", "many magnitudes")
    std, mean = statistics.std or 0.0, abs(statistics.mean or 0.0)
    if largest <= 4.0 and mean <= 10.0 * std and std >= 2.0**-7:
        return "none", "its numbers lie where float16 is at its best"
    return "zscore", "centred and scaled, it uses float16's digits"


def _judged(
    kind: TransformKind, reason: str, state: NumberState, statistics: ColumnStatistics, policy: Policy
) -> Advice:
    centres, counts = points(state)
    transform = fitted(kind, centres, counts, statistics)
    after = statistics
    if kind != "none":
        column = transforms.apply(transform, centres)
        if transforms.width(kind) == 2:  # where the flag stands, the size says nothing
            column, counts = column[centres != 0, 0], counts[centres != 0]
        after = weighted_statistics(column, counts)
    loss = after.formats["float16"]
    nothing_lost = not loss.overflowed and not loss.flushed and (loss.noise is None or loss.noise <= 2.0**-8)
    score = column_score(after, policy)
    return Advice(
        stored="float16" if nothing_lost else "float32",
        transform=transform,
        reason=reason,
        score=0.0 if statistics.infinities else score,
        formats=after.formats,
    )


def points(state: NumberState) -> tuple[Float64, Counts]:
    """The histogram as weighted points, spread evenly over each filled bin; zero as zero, both ends exact.

    A column with few filled bins gets several points a bin: some 4,000 in all.

    Args:
        state: With at least one finite number.
    """
    places, counts = filled(state.histogram)
    low, high = np.maximum(LOW[places], float(state.low)), np.minimum(HIGH[places], float(state.high))
    holds_zero = np.isin(ORDER[places], (0, 0x8000))
    low, high = np.where(holds_zero, 0.0, low), np.where(holds_zero, 0.0, high)
    each = max(1, -(-_POINTS // len(places)))
    shares = np.arange(each + 1) / each
    # Not at round places, which float16 holds exactly: golden-ratio steps, without a random number.
    jitter = (np.arange(len(places) * each).reshape(len(places), each) * _GOLDEN) % 1.0
    inside = low[:, None] + (high - low)[:, None] * (shares[:-1] + jitter / each)
    steps = np.floor(counts[:, None] * shares + 0.5).astype(np.int64)
    split: Counts = steps[:, 1:] - steps[:, :-1]
    values, weights = np.trunc(inside.ravel()) if state.whole else inside.ravel(), split.ravel()
    values, weights = values[weights > 0], weights[weights > 0]
    values[0], values[-1] = float(state.low), float(state.high)
    return values, weights


def fitted(kind: TransformKind, centres: Float64, counts: Counts, statistics: ColumnStatistics) -> Transform:
    """A transform with constants fitted to weighted points; mean and std of a z-score are the exact ones.

    Args:
        kind: What to fit.
        centres: (K,) rising.
        counts: (K,) rows at each.
        statistics: Of the column.
    """
    if kind == "zscore":
        return Transform(kind=kind, constants={"mean": statistics.mean or 0.0, "std": statistics.std or 1.0})
    if kind.startswith("log1p_"):
        there = centres != 0 if kind == "log1p_flag" else np.ones(len(centres), dtype=bool)
        logs, weights = np.log(np.maximum(centres[there], 0.0) + 1.0), counts[there]
        mean = float(np.average(logs, weights=weights))
        std = float(np.sqrt(np.average((logs - mean) ** 2, weights=weights)))
        return Transform(kind=kind, constants={"mean": mean, "std": std or 1.0})
    # Quantiles of a column of about 65,536 rows with the same histogram; every filled bin has one.
    times = np.maximum(1, np.round(counts * (float(BINS) / counts.sum()))).astype(np.int64)
    return transforms.fit(kind, np.repeat(centres, times))
