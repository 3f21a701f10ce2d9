"""What comes next, from what came last: first-order transitions counted over all users."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.errors import ConfigurationError


def markov(
    train_user: ArrayLike,
    train_item: ArrayLike,
    train_time: ArrayLike,
    *,
    users: int,
    items: int,
    prior: float = 1.0,
) -> HistoryScorer:
    """An item's score is how often it directly followed the user's last item, plus `prior` times its popularity.

    Scores order the items of one user; of two users they say nothing. Users without a row get the popularity of the
    items.

    Args:
        train_user: (N,) integer codes of the users of the training rows.
        train_item: (N,) codes of their items.
        train_time: (N,) int64 UTC microseconds. Rows of a user with the same time follow each other as they stand.
        users: Number of users, those unseen in training included.
        items: Number of items.
        prior: Transitions that the popularity of the items counts for, at least 0; what was never seen to follow is
            ordered by popularity.

    Returns:
        A scorer for `full_ranking`.

    Raises:
        ConfigurationError: `prior` is below 0, or the columns differ in length.
        DataError: A code is out of range.

    Example:
        >>> scorer = markov([0, 0, 1, 1, 2], [0, 1, 0, 1, 0], [1, 2, 1, 2, 1], users=3, items=3, prior=0.0)
        >>> scorer(np.array([2]))  # item 1 followed item 0 twice
        array([[0., 2., 0.]])

    Source:
        Rendle, Freudenthaler and Schmidt-Thieme, Factorizing personalized Markov chains, WWW 2010, section 4.1.
    """
    if not prior >= 0:
        raise ConfigurationError(f"`prior` must be at least 0, got {prior!r}", "use 1")
    times = np.asarray(train_time, dtype=np.int64)
    done = interaction_matrix(train_user, train_item, users=users, items=items)
    user, item = np.asarray(train_user, dtype=np.int64), np.asarray(train_item, dtype=np.int64)
    if times.shape != user.shape:
        raise ConfigurationError(f"there are {len(user):,} users and {len(times):,} times", "give one time a row")
    order = np.lexsort((np.arange(len(user)), times, user))
    user, item = user[order], item[order]
    follows = user[1:] == user[:-1]
    transitions = interaction_matrix(item[:-1][follows], item[1:][follows], users=items, items=items)
    last = np.append(~follows, True)[: len(user)]
    counts = np.asarray(done.sum(axis=0), dtype=np.float64)
    return HistoryScorer(
        history=interaction_matrix(user[last], item[last], users=users, items=items),
        weights=transitions,
        offset=prior * counts / max(1.0, counts.sum()),
        otherwise=counts,
    )
