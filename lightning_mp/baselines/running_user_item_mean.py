"""Score a pair by the user's and the item's mean label at that very moment."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.baselines.earlier_sums import earlier_sums
from lightning_mp.errors import ConfigurationError


def running_user_item_mean(
    user: ArrayLike, item: ArrayLike, time: ArrayLike, label: ArrayLike, *, prior: float = 10.0
) -> NDArray[np.float64]:
    """The user's mean label plus the item's less the mean of all, each over the strictly earlier rows alone.

    It learns on through the test part, as a running service would: a row sees the labels of the test rows before it,
    and never one of its own time or later. It is the baseline that a model trained once has the hardest time with.

    Args:
        user: (N,) integer codes of the users of all rows, training and test together, in any order.
        item: (N,) codes of their items.
        time: (N,) int64 UTC microseconds.
        label: (N,) labels in [0, 1].
        prior: Rows that the mean of all counts for, in both means. The mean of all itself is
            (sum + 1) / (count + 2), so that the first row of a log has one.

    Returns:
        (N,) float64 in (-1, 2), in the order of the rows: no probabilities.

    Raises:
        ConfigurationError: `prior` is not above 0, or the columns differ in length.

    Example:
        >>> running_user_item_mean([1, 1, 2], [5, 5, 5], [10, 20, 20], [1, 0, 1], prior=1.0).round(3)
        array([0.5  , 1.   , 0.833])

    Source:
        Koren, Factorization meets the neighborhood, KDD 2008, section 2.1, taken point in time; the rule of
        succession (Laplace, 1774) for the mean of all.
    """
    users, items, times = (np.asarray(column, dtype=np.int64) for column in (user, item, time))
    labels = np.asarray(label, dtype=np.float64)
    if not prior > 0:
        raise ConfigurationError(f"`prior` must be above 0, got {prior!r}", "use 10")
    if len({len(users), len(items), len(times), len(labels)}) > 1:
        problem = f"there are {len(users):,} users, {len(items):,} items, {len(times):,} times, {len(labels):,} labels"
        raise ConfigurationError(problem, "give one of each a row")
    count, total = earlier_sums(np.zeros_like(users), times, labels)
    everyone = (total + 1) / (count + 2)
    score = -everyone
    for key in (users, items):
        count, total = earlier_sums(key, times, labels)
        score = score + (total + prior * everyone) / (count + prior)
    return np.asarray(score, dtype=np.float64)
