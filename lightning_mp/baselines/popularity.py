"""Score an item by how often it was there before."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def popularity(train_item: ArrayLike, item: ArrayLike) -> NDArray[np.float64]:
    """Number of training rows of each item: the same list for everyone.

    Args:
        train_item: (N,) integer codes of the items of the training rows.
        item: (M,) codes of the items to score; one that is unseen scores 0.

    Returns:
        (M,) float64 counts, no probabilities.

    Example:
        >>> popularity([7, 7, 3], [3, 7, 5])
        array([1., 2., 0.])
    """
    known, counts = np.unique(np.asarray(train_item, dtype=np.int64), return_counts=True)
    wanted = np.asarray(item, dtype=np.int64)
    if not len(known):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[place] == wanted, counts[place], 0).astype(np.float64)
