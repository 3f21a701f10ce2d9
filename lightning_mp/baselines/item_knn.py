"""Items that the same users took: cosine of the items' columns, the nearest neighbours alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.errors import ConfigurationError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def item_knn(
    train_user: ArrayLike,
    train_item: ArrayLike,
    *,
    users: int,
    items: int,
    weight: ArrayLike | None = None,
    neighbours: int = 100,
    shrink: float = 10.0,
    count_itself: bool = False,
    max_bytes: int = 2**27,
) -> HistoryScorer:
    """An item's score is the sum of its similarities to what the user did, over the item's nearest neighbours.

    The similarity of two items is the number of users who did both, over the root of the product of the users who did
    each plus `shrink`. Users without a row get the popularity of the items.

    Args:
        train_user: (N,) integer codes of the users of the training rows.
        train_item: (N,) codes of their items.
        users: Number of users, those unseen in training included.
        items: Number of items.
        weight: (N,) weights of a user's rows in the score, such as of `recency_weights`, summed where a pair has
            several rows; when left out every pair weighs 1. Similarities don't see them.
        neighbours: Most similar items that count for an item.
        shrink: Draws similarities seen on few users towards 0.
        count_itself: Whether an item is its own first neighbour, with similarity 1: where users come back to items.
        max_bytes: Memory for similarities while they are computed, as far as one item's allow.

    Returns:
        A scorer for `full_ranking`.

    Raises:
        ConfigurationError: `neighbours` is below 1, `shrink` below 0, or the columns differ in length.
        DataError: A code is out of range.

    Example:
        >>> scorer = item_knn([0, 0, 1, 1, 2], [0, 1, 0, 1, 0], users=3, items=3, shrink=0.0)
        >>> scorer(np.array([2])).round(3)  # user 2 did item 0, which goes with item 1
        array([[0.   , 0.816, 0.   ]])

    Source:
        Deshpande and Karypis, Item-based top-N recommendation algorithms, TOIS 22, 2004; shrink: Bell and Koren,
        Scalable collaborative filtering with jointly derived neighborhood interpolation weights, ICDM 2007.
    """
    if neighbours < 1:
        raise ConfigurationError(f"`neighbours` must be at least 1, got {neighbours!r}", "use 100")
    if not shrink >= 0:
        raise ConfigurationError(f"`shrink` must be at least 0, got {shrink!r}", "use 10")
    history = interaction_matrix(train_user, train_item, users=users, items=items, weight=weight)
    done = interaction_matrix(train_user, train_item, users=users, items=items)
    done.data[:] = 1
    if weight is None:
        history = done
    counts = done.sum(axis=0)
    similar = _nearest(done, counts, neighbours, shrink, max_bytes)
    if count_itself:
        from scipy.sparse import eye_array

        similar = similar + eye_array(items, format="csr")
    return HistoryScorer(history=history, weights=similar, otherwise=np.asarray(counts, dtype=np.float64))


def _nearest(done: Any, counts: Any, neighbours: int, shrink: float, max_bytes: int) -> csr_array:
    """(V, V) sparse; column i holds the similarities of item i's neighbours."""
    from scipy.sparse import csr_array

    items = done.shape[1]
    columns = done.tocsc()
    size = max(1, max_bytes // (32 * items))  # counts, similarities and an index of 8 bytes each, and room
    row, neighbour, value = [], [], []
    for start in range(0, items, size):
        stop = min(start + size, items)
        together = (columns[:, start:stop].T @ done).toarray()
        below = np.sqrt(counts[start:stop, None] * counts) + shrink
        similar = np.divide(together, below, out=np.zeros_like(together), where=below > 0)
        similar[np.arange(stop - start), np.arange(start, stop)] = 0
        if neighbours < items:
            # The k-th largest value is the bar; of items that tie there, those of the lower code stay.
            nearest = np.argsort(-similar, axis=1, kind="stable")[:, :neighbours]
            kept = np.zeros_like(similar)
            np.put_along_axis(kept, nearest, np.take_along_axis(similar, nearest, axis=1), axis=1)
            similar = kept
        here, there = np.nonzero(similar)
        row.append(here + start)
        neighbour.append(there)
        value.append(similar[here, there])
    where = (np.concatenate(neighbour), np.concatenate(row))
    return csr_array((np.concatenate(value), where), shape=(items, items))
