"""What a user took before will be taken again: the strongest simple rule where people come back."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix


def own_frequency(
    train_user: ArrayLike, train_item: ArrayLike, *, users: int, items: int, weight: ArrayLike | None = None
) -> HistoryScorer:
    """An item's score is how often the user took it; items that the user took equally often go by popularity.

    Args:
        train_user: (N,) integer codes of the users of the training rows.
        train_item: (N,) codes of their items.
        users: Number of users, those unseen in training included; they get the popularity of the items.
        items: Number of items.
        weight: (N,) weights of the rows, such as of `recency_weights`; 1 when left out.

    Returns:
        A scorer for `full_ranking`.

    Raises:
        ConfigurationError: The columns differ in length.
        DataError: A code is out of range.

    Example:
        >>> scorer = own_frequency([0, 0, 1], [2, 2, 1], users=2, items=3)
        >>> scorer(np.array([1])).round(3)
        array([[0., 1., 0.]])
    """
    counts = np.asarray(interaction_matrix(train_user, train_item, users=users, items=items).sum(axis=0))
    return HistoryScorer(
        history=interaction_matrix(train_user, train_item, users=users, items=items, weight=weight),
        offset=1e-6 * counts / max(1.0, float(counts.sum())),  # decides between equals alone
        otherwise=counts,
    )
