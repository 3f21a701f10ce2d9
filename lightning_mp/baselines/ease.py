"""EASE: the best linear map from what a user did to what the user did, an item never from itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.errors import ConfigurationError, DataError

Floats = NDArray[np.float64]


def ease(
    train_user: ArrayLike,
    train_item: ArrayLike,
    *,
    users: int,
    items: int,
    l2: float = 200.0,
    max_items: int = 10_000,
) -> HistoryScorer:
    """Linear regression of each item on all others, in closed form and float64; hard to beat where users are many.

    Memory is one square matrix of the items that take part, 8 bytes a cell: 800 MB at 10 000 items. With more than
    `max_items` the most popular take part, and the others score 0. Users without a row get the popularity of the items.

    Args:
        train_user: (N,) integer codes of the users of the training rows.
        train_item: (N,) codes of their items; a pair counts once.
        users: Number of users, those unseen in training included.
        items: Number of items.
        l2: Weight of the penalty on the squared weights, above 0: 100 to 1000 on most logs.
        max_items: Items that take part at most.

    Returns:
        A scorer for `full_ranking`.

    Raises:
        ConfigurationError: `l2` is not above 0, `max_items` is below 1, or the columns differ in length.
        DataError: A code is out of range, or there are no training rows.

    Example:
        >>> scorer = ease([0, 0, 1, 1, 2], [0, 1, 0, 1, 0], users=3, items=3, l2=1.0)
        >>> scorer(np.array([2])).round(3)
        array([[0. , 0.5, 0. ]])

    Source:
        Steck, Embarrassingly shallow autoencoders for sparse data, WWW 2019.
    """
    if not 0 < l2 < np.inf:
        raise ConfigurationError(f"`l2` must be above 0, got {l2!r}", "use 200")
    if max_items < 1:
        raise ConfigurationError(f"`max_items` must be at least 1, got {max_items!r}", "use 10000")
    done = interaction_matrix(train_user, train_item, users=users, items=items)
    if not done.nnz:
        raise DataError("there are no training rows to learn from", "change `split`")
    done.data[:] = 1
    counts = np.asarray(done.sum(axis=0), dtype=np.float64)
    # Items that nobody took have weight 0 to and from all others: they need no room in the matrix.
    taken = np.flatnonzero(counts > 0)
    part = np.sort(taken[np.argsort(-counts[taken], kind="stable")[:max_items]])
    return HistoryScorer(history=done, weights=_weights(done[:, part], l2), part=part, otherwise=counts)


def _weights(done: Any, l2: float) -> Floats:
    """(V, V): -P / diag(P) with P the inverse of the Gram matrix plus l2, 0 on the diagonal; in place."""
    from scipy.linalg.lapack import dpotrf, dpotri

    items = done.shape[1]
    gram = np.empty((items, items), order="F")
    columns, transposed = done.tocsc(), done.T.tocsr()
    for start in range(0, items, 512):  # the sparse product of all columns would take several times the room
        gram[:, start : start + 512] = (transposed @ columns[:, start : start + 512]).toarray()
    gram[np.diag_indices(items)] += l2
    factor, failed = dpotrf(gram, lower=1, overwrite_a=1)
    if not failed:
        inverse, failed = dpotri(factor, lower=1, overwrite_c=1)
    if failed:
        raise DataError(f"the matrix of {items:,} items cannot be inverted with l2={l2!r}", "use a larger `l2`")
    diagonal = -inverse.diagonal()
    for start in range(0, items, 512):  # LAPACK fills the lower half alone
        stop = min(start + 512, items)
        lower = np.tril(inverse[start:stop, start:stop], -1)
        inverse[start:stop, start:stop] = lower + lower.T
        inverse[start:stop, stop:] = inverse[stop:, start:stop].T
    inverse /= diagonal
    return np.asarray(inverse)
