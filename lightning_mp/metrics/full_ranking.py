"""Every item ranked for every user, a bounded number of users at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.relevant_pairs import RelevantPairs
from lightning_mp.metrics.user_metrics import UserMetrics

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Ints = NDArray[np.int64]


def full_ranking(
    score: Callable[[Ints], ArrayLike],
    relevant: csr_array,
    *,
    seen: csr_array | None = None,
    users: ArrayLike | None = None,
    k: int = 10,
    item_slices: Mapping[str, NDArray[np.bool_]] | None = None,
    max_bytes: int = 2**27,
) -> UserMetrics:
    """Rank all items for each user and compare with the items that were relevant; no sampling.

    Tied items count as the expectation over their orders: a constant score earns what chance does.

    Args:
        score: Takes codes of users (U,) int64 and gives their scores for all items, (U, V), finite; called with a
            bounded number of users at a time, each once.
        relevant: (users, V) sparse matrix: what each user did in the test part. Its values are gains for NDCG, above
            0; the other metrics take a stored value for relevant.
        seen: (users, V) sparse matrix of items that are no candidates for a user, such as those of training; `None`
            where users come back to items.
        users: Codes of users to evaluate; all who have a relevant item when left out. Users without one are left out.
        k: Items of each list that count, at least 1.
        item_slices: (V,) masks by name: the same metrics for the relevant items of a slice alone, in `slices`. All
            items stay candidates.
        max_bytes: Memory for scores and what is made from them, as far as one user's allow.

    Returns:
        Metrics of each user; `.mean()` gives the means.

    Raises:
        ConfigurationError: `k` is below 1.
        DataError: No user has a relevant item; scores of another shape, or not finite; an item that is seen and
            relevant; a gain below 0; matrices of different shapes.

    Example:
        >>> from scipy.sparse import csr_array
        >>> relevant = csr_array(np.array([[0, 1, 1], [1, 0, 0]]))
        >>> result = full_ranking(lambda users: np.tile([3.0, 2.0, 1.0], (len(users), 1)), relevant, k=2)
        >>> result.recall, result.mrr
        (array([0.5, 1. ]), array([0.5, 1. ]))

    Source:
        Why no sampling: Krichene and Rendle, On sampled metrics for item recommendation, KDD 2020.
    """
    if k < 1:
        raise ConfigurationError(f"`k` must be at least 1, got {k!r}", "use 10")
    wanted = _checked(relevant, "relevant")
    excluded = None if seen is None else _checked(seen, "seen")
    _compare(wanted, excluded)
    counts = np.diff(wanted.indptr)
    asked = np.arange(wanted.shape[0]) if users is None else np.asarray(users, dtype=np.int64)
    asked = asked[counts[asked] > 0]
    if not len(asked):
        raise DataError("no user has a relevant item", "give the pairs of the test part as `relevant`")
    size = max(1, max_bytes // (24 * wanted.shape[1]))  # scores in float64, their copy, and one sorted
    parts: list[UserMetrics] = []
    sliced: dict[str, list[UserMetrics]] = {name: [] for name in item_slices or {}}
    for start in range(0, len(asked), size):
        pairs = _pairs(score, asked[start : start + size], wanted, excluded)
        parts.append(pairs.metrics(k))
        for name, mask in (item_slices or {}).items():
            sliced[name].append(pairs.metrics(k, np.asarray(mask, dtype=bool)[pairs.item]))
    return UserMetrics.joined(parts, {name: UserMetrics.joined(pieces) for name, pieces in sliced.items()})


def _pairs(score: Callable[[Ints], ArrayLike], users: Ints, wanted: Any, excluded: Any) -> RelevantPairs:
    scores = np.array(score(users))
    if scores.shape != (len(users), wanted.shape[1]):
        raise DataError(
            f"`score` gave shape {scores.shape} for {len(users):,} users and {wanted.shape[1]:,} items",
            "give one score a user and item, in the order of the codes",
        )
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float64)
    lost = (~np.isfinite(scores)).sum(axis=1)
    if lost.any():
        first = int(np.flatnonzero(lost)[0])
        raise DataError(
            f"{lost[first]:,} of the {scores.shape[1]:,} scores of user {users[first]} are not finite",
            "give finite scores; what must not be shown goes into `seen`",
        )
    if excluded is not None:
        row, item, _ = _entries(excluded, users)
        scores[row, item] = -np.inf
    row, item, gain = _entries(wanted, users)
    return RelevantPairs.of(users, row, item, gain, scores)


def _entries(matrix: Any, users: Ints) -> tuple[Ints, Ints, NDArray[np.float64]]:
    part = matrix[users]
    row = np.repeat(np.arange(len(users)), np.diff(part.indptr))
    return row, part.indices.astype(np.int64), part.data.astype(np.float64)


def _checked(matrix: csr_array, name: str) -> Any:
    from scipy.sparse import csr_array, issparse

    if not issparse(matrix):
        raise DataError(f"`{name}` is no sparse matrix but {type(matrix).__name__}", "use `scipy.sparse.csr_array`")
    checked = csr_array(matrix, copy=True)
    checked.sum_duplicates()
    checked.eliminate_zeros()
    if len(checked.data) and not checked.data.min() > 0:  # NaN too
        raise DataError(f"`{name}` has a value that is not above 0", "store 1, or the gain, for each pair")
    return checked


def _compare(wanted: Any, excluded: Any) -> None:
    if excluded is None:
        return
    if wanted.shape != excluded.shape:
        raise DataError(
            f"`relevant` has shape {wanted.shape}, `seen` has {excluded.shape}", "make both over all users and items"
        )
    both = wanted.multiply(excluded).tocoo()
    if both.nnz:
        user, item = int(both.coords[0][0]), int(both.coords[1][0])
        raise DataError(
            f"item {item} of user {user} is both seen and relevant ({both.nnz:,} such pairs)",
            "leave `seen` out where users come back to items, or take these pairs out of `relevant`",
        )
