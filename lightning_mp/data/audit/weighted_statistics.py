"""Statistics of weighted points: what a histogram says of a column behind a transform, without a second pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import Counts
from lightning_mp.data.audit.rounding import FORMATS, rounded
from lightning_mp.data.audit.statistics import ColumnStatistics, FormatStatistics
from lightning_mp.float_formats import FloatFormat

Float64 = npt.NDArray[np.float64]


def weighted_statistics(values: Float64, counts: Counts) -> ColumnStatistics:
    """The statistics that a score reads, of a column that holds each value `counts` times.

    Args:
        values: (K,) finite.
        counts: (K,) rows of each, at least 1.
    """
    rows = int(counts.sum())
    mean = float(np.average(values, weights=counts))
    std = float(np.sqrt(np.average((values - mean) ** 2, weights=counts)))
    nonzero = values != 0
    sizes, weights = np.abs(values[nonzero]), counts[nonzero]
    order = np.argsort(sizes)
    sizes, weights = sizes[order], weights[order]
    zeros = int(counts[~nonzero].sum())
    low, high = (weighted_quantile(sizes, weights, share) for share in (0.01, 0.99))
    return ColumnStatistics(
        rows=rows,
        missing=0,
        finite=rows,
        zeros=zeros,
        negatives=int(counts[values < 0].sum()),
        minimum=float(values.min()),
        maximum=float(values.max()),
        mean=mean,
        std=std,
        smallest_magnitude=float(sizes[0]) if len(sizes) else None,
        largest_magnitude=float(sizes[-1]) if len(sizes) else None,
        ratio=float(sizes[-1] / sizes[0]) if len(sizes) else None,
        typical_ratio=high / low if high is not None and low else None,
        zero_share=zeros / rows,
        spread=std / abs(mean) if mean else None,
        formats={entry.name: _loss(values, counts, std, entry) for entry in FORMATS},
    )


def weighted_quantile(rising: Float64, counts: Counts, share: float) -> float | None:
    """The value that at least `share` of the rows do not exceed.

    Args:
        rising: (K,) sorted.
        counts: (K,) rows of each.
        share: In [0, 1].
    """
    if not len(rising):
        return None
    ends = np.cumsum(counts)
    return float(rising[np.searchsorted(ends, max(1.0, np.ceil(share * ends[-1])))])


def _loss(values: Float64, counts: Counts, std: float, number_format: FloatFormat) -> FormatStatistics:
    with np.errstate(over="ignore", under="ignore"):
        cast = rounded(values.astype(np.float32), number_format).astype(np.float64)
    kept = np.isfinite(cast)
    size = np.abs(cast)
    away = np.abs(cast[kept] - values[kept])
    counted = values[kept] != 0
    errors = np.minimum(away[counted] / np.abs(values[kept][counted]), 1.0)
    order = np.argsort(errors)
    errors, weights = errors[order], counts[kept][counted][order]
    flushed = kept & (cast == 0) & (values != 0)
    subnormal = kept & (cast != 0) & (size < number_format.smallest_normal)
    noise = float(np.sqrt(np.average(away**2, weights=counts[kept]))) / std if std and kept.any() else None
    return FormatStatistics(
        overflowed=int(counts[~kept].sum()),
        flushed=int(counts[flushed].sum()),
        subnormal=int(counts[subnormal].sum()),
        exact=int(counts[kept][away == 0].sum()),
        exact_share=float(counts[kept][away == 0].sum() / counts.sum()),
        error_p50=weighted_quantile(errors, weights, 0.5),
        error_p99=weighted_quantile(errors, weights, 0.99),
        noise=noise,
        collided=None,
    )
