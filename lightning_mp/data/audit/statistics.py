"""ColumnStatistics: the numbers of one column, and what each format makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lightning_mp.data.audit.bins import auc, magnitude_counts, quantiles, stability_index
from lightning_mp.data.audit.format_loss import FormatLoss
from lightning_mp.data.audit.number_state import NumberState

SHARES: Final = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
"""Quantiles that a report holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatStatistics:
    """What a cast does to a column, on the way it is stored: float32 first.

    Args:
        overflowed: Numbers that become infinite: from 65520 on in float16.
        flushed: Numbers that are not zero and become zero: until 2^-25 in float16.
        subnormal: Numbers that become subnormal and not zero, and have fewer digits.
        exact: Numbers that stay what they are.
        exact_share: Their share of the finite numbers.
        error_p50: Median of abs(cast - x) / abs(x) over numbers that are not zero and stay finite.
        error_p99: 99th percentile of the same.
        noise: Root mean square of cast - x over the standard deviation; `None` for a constant column.
        collided: Different integers that share a number of the format with another; `None` for other columns.
    """

    overflowed: int
    flushed: int
    subnormal: int
    exact: int
    exact_share: float | None
    error_p50: float | None
    error_p99: float | None
    noise: float | None
    collided: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """The numbers of one column. Counts are exact; quantiles and the AUC come from the histogram.

    Args:
        rows: All of them.
        missing: Nulls and NaN.
        nans: NaN alone.
        infinities: Of both signs.
        finite: The other ones.
        zeros: Of both signs.
        negatives: Below zero.
        distinct: Different values.
        distinct_exact: Whether that is exact; else it has a standard error of 1.6 %.
        minimum: Smallest finite number.
        maximum: Largest one.
        minimum_rows: Rows that hold the smallest one.
        maximum_rows: Rows that hold the largest one.
        mean: Of the finite numbers.
        std: Of the population.
        smallest_magnitude: Smallest one other than zero.
        largest_magnitude: Largest one.
        ratio: Largest over smallest magnitude.
        typical_ratio: 99th over first percentile of the magnitudes other than zero.
        zero_share: Of the finite numbers.
        spread: Standard deviation over the magnitude of the mean.
        burst_ratio: 99th percentile over the median of the magnitudes other than zero.
        quantiles: By share.
        whole: Whether all finite numbers are integers.
        float32_bits: Bits of float32's 23 for the fraction that any number sets.
        beyond_float32: Finite numbers that float32 makes infinite.
        magnitudes: Numbers by the power of two that their magnitude starts at.
        formats: By format.
        auc: Of the column as a score of the label; `None` without a label.
        drift: Population stability index between the first and the last quarter of the time.
        missing_first: Share missing in the first quarter.
        missing_last: Share missing in the last quarter.
    """

    rows: int
    missing: int
    nans: int = 0
    infinities: int = 0
    finite: int = 0
    zeros: int = 0
    negatives: int = 0
    distinct: int = 0
    distinct_exact: bool = True
    minimum: float | None = None
    maximum: float | None = None
    minimum_rows: int = 0
    maximum_rows: int = 0
    mean: float | None = None
    std: float | None = None
    smallest_magnitude: float | None = None
    largest_magnitude: float | None = None
    ratio: float | None = None
    typical_ratio: float | None = None
    zero_share: float | None = None
    spread: float | None = None
    burst_ratio: float | None = None
    quantiles: dict[str, float] = field(default_factory=dict)
    whole: bool = False
    float32_bits: int | None = None
    beyond_float32: int = 0
    magnitudes: dict[int, int] = field(default_factory=dict)
    formats: dict[str, FormatStatistics] = field(default_factory=dict)
    auc: float | None = None
    drift: float | None = None
    missing_first: float | None = None
    missing_last: float | None = None


def column_statistics(state: NumberState) -> ColumnStatistics:
    """Read the statistics off a state.

    Args:
        state: After the whole column.
    """
    missing = state.nulls + state.nans
    first, last = (_share(missing_rows, rows) for rows, missing_rows in state.part_rows.tolist())
    if not state.count:
        return ColumnStatistics(
            rows=state.rows, missing=missing, nans=state.nans, infinities=state.infinities,
            missing_first=first, missing_last=last,
        )  # fmt: skip
    values = quantiles(state.histogram, SHARES, float(state.low), float(state.high))
    sizes = state.histogram[:0x8000] + state.histogram[0x8000:]
    sizes[0] -= state.zeros
    largest = max(abs(state.low), abs(state.high))
    some = state.smallest if math.isfinite(state.smallest) else 0.0
    low, median, high = quantiles(sizes, (0.01, 0.5, 0.99), some, float(largest)).tolist()
    std = math.sqrt(state.squares / state.count)
    nonzero = math.isfinite(state.smallest)
    return ColumnStatistics(
        rows=state.rows,
        missing=missing,
        nans=state.nans,
        infinities=state.infinities,
        finite=state.count,
        zeros=state.zeros,
        negatives=state.negatives,
        distinct=state.distinct.count,
        distinct_exact=state.distinct.exact,
        minimum=state.low,
        maximum=state.high,
        minimum_rows=state.low_rows,
        maximum_rows=state.high_rows,
        mean=state.mean,
        std=std,
        smallest_magnitude=state.smallest if nonzero else None,
        largest_magnitude=float(largest) if nonzero else None,
        ratio=largest / state.smallest if nonzero else None,
        typical_ratio=_ratio(high, low) if nonzero else None,
        zero_share=state.zeros / state.count,
        spread=std / abs(state.mean) if state.mean else None,
        burst_ratio=_ratio(high, median) if nonzero else None,
        quantiles={f"{share:g}": value for share, value in zip(SHARES, values.tolist(), strict=True)},
        whole=state.whole,
        float32_bits=_fraction_bits(state.bits),
        beyond_float32=state.beyond_float32,
        magnitudes=magnitude_counts(state.histogram),
        formats={name: _format(loss, state, std) for name, loss in state.losses.items()},
        auc=None
        if state.positives is None or state.labelled is None
        else auc(state.positives, state.labelled - state.positives),
        drift=None if state.parts is None else stability_index(state.parts[0], state.parts[1]),
        missing_first=first,
        missing_last=last,
    )


def _format(loss: FormatLoss, state: NumberState, std: float) -> FormatStatistics:
    kept = state.count - loss.overflowed
    constant = state.low == state.high
    p50, p99 = loss.error_quantiles(0.5, 0.99)
    return FormatStatistics(
        overflowed=loss.overflowed,
        flushed=loss.flushed,
        subnormal=loss.subnormal,
        exact=loss.exact,
        exact_share=loss.exact / state.count,
        error_p50=p50,
        error_p99=p99,
        noise=None if constant or not std or not kept else math.sqrt(loss.squared_error / kept) / std,
        collided=max(0, state.distinct.count - loss.results) if state.whole else None,
    )


def _fraction_bits(pattern: int) -> int:
    fraction = pattern & 0x7FFFFF
    return 23 - ((fraction & -fraction).bit_length() - 1) if fraction else 0


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _ratio(high: float, low: float) -> float | None:
    return high / low if low and not np.isnan(low) else None
