"""Score a pair by the user's mean label and the item's, as they stood at the end of training."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.baselines.smoothed_mean import smoothed_mean


def user_item_mean(
    train_user: ArrayLike,
    train_item: ArrayLike,
    train_label: ArrayLike,
    user: ArrayLike,
    item: ArrayLike,
    *,
    prior: float = 10.0,
) -> NDArray[np.float64]:
    """The user's smoothed mean label plus the item's, less the mean of all.

    Args:
        train_user: (N,) integer codes of the users of the training rows.
        train_item: (N,) codes of their items.
        train_label: (N,) labels in [0, 1].
        user: (M,) codes of the users to score for; one that is unseen counts as the mean of all.
        item: (M,) codes of the items to score; so does an unseen item.
        prior: Rows that the mean of all counts for, in both means.

    Returns:
        (M,) float64 in (-1, 2): no probabilities.

    Raises:
        ConfigurationError: `prior` is not above 0, or there is not one label a row.
        DataError: There are no training rows.

    Example:
        >>> user_item_mean([1, 1, 2], [5, 6, 5], [1, 0, 1], [1, 9], [5, 5], prior=1.0).round(3)
        array([0.778, 0.889])

    Source:
        Koren, Factorization meets the neighborhood, KDD 2008, section 2.1 (baseline estimates).
    """
    of_user = smoothed_mean(train_user, train_label, user, prior=prior)
    of_item = smoothed_mean(train_item, train_label, item, prior=prior)
    return np.asarray(of_user + of_item - np.mean(np.asarray(train_label, dtype=np.float64)))
