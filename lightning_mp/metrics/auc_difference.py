"""How much one model's AUC lies above another's on the same rows, and how sure that is."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.paired_bootstrap import Difference

Floats = NDArray[np.float64]


def auc_difference(
    ours: ArrayLike, theirs: ArrayLike, labels: ArrayLike, *, groups: ArrayLike | None = None, level: float = 0.95
) -> Difference:
    """Difference of two AUCs with its paired interval, in one sort a model and no draw.

    Both models scored the same rows, so that what makes a row easy for both falls out. Rows of one user are not
    independent; with `groups` the users are the units, and the interval is as wide as that asks for.

    Args:
        ours: (N,) scores, finite.
        theirs: (N,) scores of the other model, the same rows in the same order.
        labels: (N,) above 0 for a positive row.
        groups: (N,) the user of each row; each row stands alone when left out.
        level: Share of such intervals that hold the true difference, in (0, 1).

    Returns:
        AUC of ours less that of theirs, and the interval; `users` counts the groups, or the rows.

    Raises:
        ConfigurationError: `level` is not in (0, 1).
        DataError: Columns that differ in length, a score that is not finite, one class alone, or one group.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.random(4000) < 0.2
        >>> theirs = labels + rng.normal(size=4000)
        >>> found = auc_difference(theirs + rng.normal(size=4000), theirs, labels)
        >>> found.high < 0, found.decided
        (True, True)

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988; for rows in groups Obuchowski, Biometrics 53, 1997. The
        interval takes Student's t over the groups, which few groups need.
    """
    from scipy.stats import t

    if not 0 < level < 1:
        raise ConfigurationError(f"`level` must be in (0, 1), got {level!r}", "use 0.95")
    columns = [np.asarray(column, dtype=np.float64).ravel() for column in (ours, theirs)]
    positive = np.asarray(labels).ravel() > 0
    if not len(columns[0]) == len(columns[1]) == len(positive):
        lengths = f"{len(columns[0]):,}, {len(columns[1]):,} and {len(positive):,}"
        raise DataError(f"scores and labels have {lengths} rows", "give the same rows in the same order")
    for name, column in zip(("ours", "theirs"), columns, strict=True):
        if not np.isfinite(column).all():
            first = int(np.flatnonzero(~np.isfinite(column))[0])
            raise DataError(f"score {column[first]} of {name} at row {first:,}", "score with a model that is sound")
    if positive.all() or not positive.any():
        raise DataError("all labels are of one class: there is no AUC", "score rows of both")
    (mine, pull_mine), (other, pull_other) = (_auc_and_pull(column, positive) for column in columns)
    pull = pull_mine - pull_other
    if groups is not None:
        member: NDArray[np.int64] = np.unique(np.asarray(groups).ravel(), return_inverse=True)[1]
        pull = np.bincount(member, weights=pull).astype(np.float64)
    units = len(pull)
    if units < 2:
        raise DataError("all rows are of one user: there is nothing to compare it with", "score rows of more users")
    error = float(np.sqrt(units / (units - 1) * (pull**2).sum()))
    reach = float(t.ppf((1 + level) / 2, units - 1)) * error
    mean = mine - other
    return Difference(mean=mean, low=mean - reach, high=mean + reach, level=level, users=units)


def _auc_and_pull(scores: Floats, positive: NDArray[np.bool_]) -> tuple[float, Floats]:
    """The AUC, and how far each row draws it: they sum up to 0, and their squares to its variance."""
    above = _share_below(scores[positive], scores[~positive])  # of each positive, the negatives that it passes
    below = 1 - _share_below(scores[~positive], scores[positive])
    auc = float(above.mean())
    pull = np.empty(len(scores))
    pull[positive] = (above - auc) / len(above)
    pull[~positive] = (below - auc) / len(below)
    return auc, pull


def _share_below(values: Floats, among: Floats) -> Floats:
    """For each value, the share of the others that lie below it; ties count half."""
    ordered = np.sort(among)
    under, upto = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    share: Floats = (under + upto) / (2 * len(ordered))
    return share
