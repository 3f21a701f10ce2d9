"""The mixed-precision compatibility score: from 0 to 100, a product of measured factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

from lightning_mp.data.audit.statistics import ColumnStatistics
from lightning_mp.float_formats import FLOAT16

Policy = Literal["fp16", "bf16"]
FORMAT_OF: Final[dict[Policy, str]] = {"fp16": "float16", "bf16": "bfloat16"}
"""What a policy casts to."""
_HEADROOM_BITS: Final = 6.0


def score_factors(statistics: ColumnStatistics, policy: Policy) -> dict[str, float]:
    """The factors of a column's score, each in [0, 1]; 100 times their product is the score.

    | factor | formula | why |
    |---|---|---|
    | `overflow` | 0 if any number becomes infinite, or is | one infinity makes a whole batch NaN |
    | `flush` | 1 - flushed / numbers that are not zero | what becomes zero is gone |
    | `rounding` | clip((-1 - log2(noise)) / 7, 0, 1) | rounding error over the spread: 1 until 2^-8, 0 at 1/2 |
    | `headroom` | clip(log2(65504 / largest) / 6, 0.3, 1), for fp16 | its products overflow |
    | `ratio` | 1 - 0.1 log10(ratio / 1e4), at least 0.5 | beyond 1e4 one scale cannot serve all rows |
    | `zeros` | 1 - 0.4 (share - 0.5) from half on, but for flags | bursts: the rows that count are few |

    The ratio is that of the largest to the smallest magnitude for a column of one sign, else that of the 99th to the
    first percentile: a centred column comes near zero, and nothing is lost there.

    Args:
        statistics: Of the column, with at least one finite number.
        policy: What the column is to be cast to.
    """
    loss = statistics.formats[FORMAT_OF[policy]]
    nonzero = statistics.finite - statistics.zeros
    factors = {
        "overflow": 0.0 if loss.overflowed or statistics.infinities else 1.0,
        "flush": 1.0 - loss.flushed / nonzero if nonzero else 1.0,
        "rounding": rounding_factor(loss.noise),
        "headroom": headroom_factor(statistics.largest_magnitude) if policy == "fp16" else 1.0,
        "ratio": 1.0,
        "zeros": 1.0 - 0.4 * max(0.0, (statistics.zero_share or 0.0) - 0.5) if statistics.distinct != 2 else 1.0,
    }
    ratio = scale_ratio(statistics)
    if ratio is not None and ratio > 1e4:
        factors["ratio"] = max(0.5, 1.0 - 0.1 * math.log10(ratio / 1e4))
    return factors


def column_score(statistics: ColumnStatistics, policy: Policy) -> float | None:
    """Score of a column from 0 to 100; `None` where it holds no finite number.

    Args:
        statistics: Of the column.
        policy: What it is to be cast to.
    """
    if not statistics.finite:
        return None
    return 100.0 * math.prod(score_factors(statistics, policy).values())


def table_score(scores: Sequence[float | None]) -> float | None:
    """Score of a table: the mean of its columns', and at most half way between the worst one and 100.

    One column that overflows spoils every batch, however many good ones stand beside it: it caps the table at 50.

    Args:
        scores: Of the columns that would be floats; `None` ones are left out.

    Example:
        >>> table_score([100.0, 90.0, None]), table_score([100.0] * 63 + [0.0]), table_score([])
        (95.0, 50.0, None)
    """
    known = [score for score in scores if score is not None]
    if not known:
        return None
    return min(sum(known) / len(known), (100.0 + min(known)) / 2)


def scale_ratio(statistics: ColumnStatistics) -> float | None:
    """Largest to smallest magnitude, as `score_factors` takes it."""
    one_sign = not statistics.negatives or statistics.negatives == statistics.finite - statistics.zeros
    return statistics.ratio if one_sign else statistics.typical_ratio


def rounding_factor(noise: float | None) -> float:
    """1 while the rounding error is at most 2^-8 of the standard deviation, falling to 0 at one half."""
    return 1.0 if not noise else min(1.0, max(0.0, (-1.0 - math.log2(noise)) / 7.0))


def headroom_factor(largest: float | None) -> float:
    """1 while six powers of two lie between the largest magnitude and float16's."""
    if not largest:
        return 1.0
    return min(1.0, max(0.3, math.log2(FLOAT16.largest / largest) / _HEADROOM_BITS))
