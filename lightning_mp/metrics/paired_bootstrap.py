"""Whether one model beats another, or only on these users."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError, DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean difference and the interval in which it lies.

    Args:
        mean: Of ours less theirs, over the users.
        low: Lower end of the interval.
        high: Upper end.
        level: Share of such intervals that hold the true difference.
        users: Users that were compared.
    """

    mean: float
    low: float
    high: float
    level: float
    users: int

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0: one of the two is better on users like these."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    ours: ArrayLike,
    theirs: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Interval of the mean difference of two models' metrics on the same users, by drawing users again and again.

    Both models stand on the same users, so what makes a user easy or hard for both falls out. The interval is
    bias-corrected and accelerated. It says how the comparison would go on other users of this kind; not how it would
    go after training again with another seed.

    Args:
        ours: (U,) metric of each user, such as `UserMetrics.ndcg`.
        theirs: (U,) of the other model, the same users in the same order.
        weights: (U,) weights of the users in the mean, at least 0; equal when left out.
        level: Share of such intervals that hold the true difference, such as 0.95.
        samples: Draws of U users.
        seed: Of the draws.

    Returns:
        The difference and its interval.

    Raises:
        ConfigurationError: `level` is not between 0 and 1, or `samples` below 100.
        DataError: Columns that differ in length or hold no finite number, or fewer than 2 users.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> theirs = rng.uniform(size=500)
        >>> found = paired_bootstrap(theirs + rng.normal(0.02, 0.1, 500), theirs)
        >>> found.low < 0.02 < found.high, found.decided
        (True, True)

    Source:
        Efron, Better bootstrap confidence intervals, JASA 82, 1987; Sakai, Evaluating evaluation metrics based on the
        bootstrap, SIGIR 2006.
    """
    if not 0 < level < 1:
        raise ConfigurationError(f"`level` must be between 0 and 1, got {level!r}", "use 0.95")
    if samples < 100:
        raise ConfigurationError(f"`samples` must be at least 100, got {samples!r}", "use 2000")
    gain, weight = _checked(ours, theirs, weights)
    mean = float(np.average(gain, weights=weight))
    pull = weight * (gain - mean)  # how far a user draws the mean
    spread = float((pull**2).sum())
    if spread <= (1e-12 * (np.abs(weight * gain).sum())) ** 2:
        return Difference(mean=mean, low=mean, high=mean, level=level, users=len(gain))
    drawn = _drawn(gain, weight, samples, np.random.default_rng(seed))
    acceleration = float((pull**3).sum()) / (6 * spread**1.5)
    low, high = _ends(drawn, mean, acceleration, level)
    return Difference(mean=mean, low=low, high=high, level=level, users=len(gain))


def _checked(ours: ArrayLike, theirs: ArrayLike, weights: ArrayLike | None) -> tuple[Floats, Floats]:
    mine, other = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    weight = np.ones(len(mine)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not mine.shape == other.shape == weight.shape or mine.ndim != 1:
        raise DataError(
            f"ours has shape {mine.shape}, theirs {other.shape}, the weights {weight.shape}",
            "give one number a user, the same users in the same order",
        )
    if len(mine) < 2:
        raise DataError(f"there are {len(mine)} users to compare on", "compare on at least 2")
    for name, column in (("ours", mine), ("theirs", other), ("weights", weight)):
        lost = np.flatnonzero(~np.isfinite(column))
        if len(lost):
            raise DataError(f"{name} is {column[lost[0]]} at user {lost[0]:,}", "leave out users without the metric")
    if weight.min() < 0 or np.count_nonzero(weight) < 2:
        raise DataError("weights must be at least 0, and above 0 for 2 users", "leave `weights` out")
    return mine - other, weight


def _drawn(gain: Floats, weight: Floats, samples: int, rng: np.random.Generator) -> Floats:
    users, means, product = len(gain), np.empty(samples), gain * weight
    size = max(1, 2**18 // users)
    for start in range(0, samples, size):
        taken = rng.integers(users, size=(min(size, samples - start), users))
        total = weight[taken].sum(axis=1)
        with np.errstate(invalid="ignore"):  # a draw of users that weigh nothing has no mean
            means[start : start + size] = product[taken].sum(axis=1) / total
    return means[np.isfinite(means)]


def _ends(drawn: Floats, mean: float, acceleration: float, level: float) -> tuple[float, float]:
    from scipy.special import ndtr, ndtri

    below = ((drawn < mean).sum() + 0.5 * (drawn == mean).sum()) / len(drawn)
    bias = ndtri(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn)))
    shifted = bias + ndtri([(1 - level) / 2, (1 + level) / 2])
    shares = ndtr(bias + shifted / (1 - acceleration * shifted))
    low, high = np.quantile(drawn, np.clip(shares, 0, 1))
    return float(low), float(high)
