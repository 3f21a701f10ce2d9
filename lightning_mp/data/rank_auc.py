"""AUC from ranks, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.chosen_rows import chosen_rows
from lightning_mp.data.row_pieces import row_pieces


def rank_auc(labels: npt.NDArray[np.bool_], scores: npt.NDArray[Any]) -> float | None:
    """Area under the ROC curve; a tie counts half. `None` where there are not both classes.

    Args:
        labels: (N,).
        scores: (N,) numbers without NaN.

    Example:
        >>> rank_auc(np.array([False, True, True]), np.array([1.0, 1.0, 2.0]))
        0.75
    """
    positives = int(np.count_nonzero(labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    above, below = chosen_rows(scores, labels), chosen_rows(scores, ~labels)
    above.sort()
    below.sort()
    # Twice the pairs in the right order, ties once: whole numbers, so that no order of summing rounds them.
    won = 0
    for piece in row_pieces(positives):
        for side in ("left", "right"):
            won += int(np.searchsorted(below, above[piece], side=side).sum())
    return won / 2 / (positives * negatives)
