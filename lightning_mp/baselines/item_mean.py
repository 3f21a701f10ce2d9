"""Score an item by its mean label so far."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.baselines.smoothed_mean import smoothed_mean


def item_mean(
    train_item: ArrayLike, train_label: ArrayLike, item: ArrayLike, *, prior: float = 10.0
) -> NDArray[np.float64]:
    """Mean label of each item over the training rows, drawn towards the mean of all.

    Args:
        train_item: (N,) integer codes of the items of the training rows.
        train_label: (N,) labels in [0, 1].
        item: (M,) codes of the items to score; one that is unseen gets the mean of all.
        prior: Rows that the mean of all counts for.

    Returns:
        (M,) float64 in [0, 1]: a probability where the label is 0 or 1.

    Raises:
        ConfigurationError: `prior` is not above 0, or there is not one label a row.
        DataError: There are no training rows.

    Example:
        >>> item_mean([1, 1, 2], [1, 1, 0], [2, 1], prior=1.0).round(3)
        array([0.333, 0.889])
    """
    return smoothed_mean(train_item, train_label, item, prior=prior)
