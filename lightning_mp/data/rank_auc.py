"""AUC from ranks, in plain NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def rank_auc(labels: npt.NDArray[np.bool_], scores: npt.NDArray[np.float64]) -> float | None:
    """Area under the ROC curve; a tie counts half. `None` where there are not both classes.

    Args:
        labels: (N,).
        scores: (N,) without NaN.

    Example:
        >>> rank_auc(np.array([False, True, True]), np.array([1.0, 1.0, 2.0]))
        0.75
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = last[place] - (counts[place] - 1) / 2
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))
