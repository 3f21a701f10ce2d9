"""Histograms over the upper 16 bits of float32: 65,536 bins that cover every magnitude, added to be merged."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

BINS: Final = 1 << 16
_INFINITE: Final = 0x7F80
"""First bin, by magnitude, that holds no finite number."""


def _in_order() -> tuple[npt.NDArray[np.intp], Float64, Float64]:
    magnitude = np.arange(_INFINITE, dtype=np.uint32)
    low = (magnitude << np.uint32(16)).view(np.float32).astype(np.float64)
    high = np.append(low[1:], 2.0**128)
    order = np.concatenate([magnitude[::-1] + 0x8000, magnitude]).astype(np.intp)
    return order, np.concatenate([-high[::-1], low]), np.concatenate([-low[::-1], high])


ORDER, LOW, HIGH = _in_order()
"""Bins of finite numbers from the most negative to the largest, and the edges of each."""


def filled(counts: Counts) -> tuple[npt.NDArray[np.intp], Counts]:
    """The bins of finite numbers that hold any, from the most negative to the largest.

    Args:
        counts: (65536,) a bin.

    Returns:
        (K,) their places in `ORDER`, `LOW` and `HIGH`; and (K,) their counts.
    """
    above = np.flatnonzero(counts[:_INFINITE])
    below = np.flatnonzero(counts[0x8000 : 0x8000 + _INFINITE])[::-1]
    places = np.concatenate([_INFINITE - 1 - below, above + _INFINITE])
    return places, np.concatenate([counts[0x8000 + below], counts[above]])


def quantiles(counts: Counts, shares: npt.ArrayLike, low: float, high: float) -> Float64:
    """Quantiles from a histogram, within half a bin's width: 0.4 % of the magnitude, exact at both ends.

    Args:
        counts: (65536,) a bin.
        shares: (K,) in [0, 1].
        low: Smallest number that was counted.
        high: Largest number that was counted.

    Returns:
        (K,); NaN where nothing was counted. Within a bin the numbers are taken as evenly spread.
    """
    wanted = np.asarray(shares, dtype=np.float64)
    places, rows = filled(counts)
    if not len(places):
        return np.full(wanted.shape, np.nan)
    ends = np.cumsum(rows)
    total = int(ends[-1])
    # Rank k of numpy.quantile's `inverted_cdf`, placed in its bin.
    rank = np.clip(np.ceil(wanted * total), 1, total)
    found = np.searchsorted(ends, rank)
    begin, end = LOW[places[found]], HIGH[places[found]]
    inside = (rank - (ends[found] - rows[found]) - 0.5) / rows[found]
    values = begin + inside * (end - begin)
    holds_zero = (begin == 0.0) | (end == 0.0)
    return np.clip(np.where(holds_zero, 0.0, values), low, high)


def auc(positives: Counts, negatives: Counts) -> float | None:
    """Area under the ROC curve of a column taken as a score; numbers in one bin count as ties.

    Args:
        positives: (65536,) of the rows with the label.
        negatives: (65536,) of those without.

    Returns:
        In [0, 1]; `None` where one of both is empty.
    """
    above, below = positives[ORDER].astype(np.float64), negatives[ORDER].astype(np.float64)
    pairs = above.sum() * below.sum()
    if not pairs:
        return None
    smaller = np.cumsum(below) - below
    return float(((smaller + below / 2) * above).sum() / pairs)


def stability_index(first: Counts, last: Counts, groups: int = 10) -> float | None:
    """Population stability index between two histograms, over equally filled groups of the first.

    Args:
        first: (65536,) counts.
        last: (65536,) counts.
        groups: At most; fewer where numbers repeat.

    Returns:
        0 for equal shares; 0.1 to 0.25 is called a shift, above a large one. `None` where one is empty.

    Source:
        Siddiqi, Credit Risk Scorecards (2006), chapter 9, for the formula and the limits. Shares are smoothed by half
        a row, so that an empty group gives no infinity.
    """
    before, after = first[ORDER], last[ORDER]
    if not before.sum() or not after.sum():
        return None
    edges = np.searchsorted(np.cumsum(before), before.sum() * np.arange(1, groups) / groups)
    edges = np.unique(np.concatenate([[0], edges + 1]))
    edges = edges[edges < len(before)]
    shares = []
    for counts in (before, after):
        smoothed = np.add.reduceat(counts, edges) + 0.5
        shares.append(smoothed / smoothed.sum())
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def magnitude_counts(counts: Counts) -> dict[int, int]:
    """Numbers by the power of two that their magnitude starts at: what the pictures show; zeros are left out.

    Args:
        counts: (65536,) a bin.
    """
    both = counts[:_INFINITE] + counts[0x8000 : 0x8000 + _INFINITE]
    by_exponent = both.reshape(-1, 128).sum(axis=1)
    by_exponent[0] = both[1:128].sum()
    return {int(e) - 127: int(n) for e, n in enumerate(by_exponent) if n}
