"""Mean label of a key, drawn towards the mean of all by a stated number of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError, DataError


def smoothed_mean(train_key: ArrayLike, train_label: ArrayLike, key: ArrayLike, *, prior: float) -> NDArray[np.float64]:
    """Mean label of each key over the training rows, as if `prior` rows more had the mean of all.

    Args:
        train_key: (N,) integer codes, N at least 1.
        train_label: (N,) labels, such as 0 and 1.
        key: (M,) codes to look up; one that is unseen gets the mean of all.
        prior: Rows that the mean of all counts for, above 0.

    Returns:
        (M,) float64, within the range of the labels.

    Raises:
        ConfigurationError: `prior` is not above 0, or there is not one label a row.
        DataError: There are no training rows.

    Example:
        >>> smoothed_mean([1, 1, 2], [1, 1, 0], [1, 2, 9], prior=1.0).round(3)
        array([0.889, 0.333, 0.667])

    Source:
        James and Stein, Estimation with quadratic loss, 1961: shrinking many means beats each alone.
    """
    keys, labels = np.asarray(train_key, dtype=np.int64), np.asarray(train_label, dtype=np.float64)
    if not prior > 0:
        raise ConfigurationError(f"`prior` must be above 0, got {prior!r}", "use 10")
    if keys.shape != labels.shape:
        raise ConfigurationError(f"there are {len(keys):,} keys and {len(labels):,} labels", "give one label a row")
    if not len(keys):
        raise DataError("there are no training rows to take a mean of", "change `split`")
    everyone = labels.mean()
    known, group = np.unique(keys, return_inverse=True)
    count, total = np.bincount(group), np.bincount(group, weights=labels)
    means = (total + prior * everyone) / (count + prior)
    wanted = np.asarray(key, dtype=np.int64)
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.asarray(np.where(known[place] == wanted, means[place], everyone), dtype=np.float64)
