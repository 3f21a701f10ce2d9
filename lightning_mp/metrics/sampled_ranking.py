"""One relevant item among given negatives: the protocol of many published tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.relevant_pairs import RelevantPairs
from lightning_mp.metrics.user_metrics import UserMetrics

Ints = NDArray[np.int64]


def sampled_ranking(
    score: Callable[[Ints, Ints], ArrayLike],
    *,
    users: ArrayLike,
    positive: ArrayLike,
    negatives: ArrayLike,
    k: int = 10,
    max_bytes: int = 2**27,
) -> UserMetrics:
    """Rank one relevant item among the negatives that were drawn for it; they are given, so that all models get them.

    Use it to compare with a table that was made so. Between models it can put the worse one first: `full_ranking` does
    not. Ties count as the expectation over their orders; recall at `k` is the hit rate.

    Args:
        score: Takes codes of users (B,) and of items (B, C), both int64, and gives finite scores (B, C).
        users: (U,) integer codes of the users, one entry a relevant item.
        positive: (U,) codes of the relevant items.
        negatives: (U, N) codes of the items beside each.
        k: Items of each list that count, at least 1.
        max_bytes: Memory for scores and what is made from them, as far as one user's allow.

    Returns:
        Metrics of each entry of `users`.

    Raises:
        ConfigurationError: `k` is below 1.
        DataError: Shapes that do not fit, no users, a relevant item among its own negatives, or scores of another
            shape or not finite.

    Example:
        >>> result = sampled_ranking(
        ...     lambda users, items: -items, users=[4, 9], positive=[2, 0], negatives=[[1, 3], [1, 3]], k=1
        ... )
        >>> result.hit_rate, result.mrr
        (array([0., 1.]), array([0.5, 1. ]))

    Source:
        Krichene and Rendle, On sampled metrics for item recommendation, KDD 2020.
    """
    if k < 1:
        raise ConfigurationError(f"`k` must be at least 1, got {k!r}", "use 10")
    codes, first, rest = (np.asarray(column, dtype=np.int64) for column in (users, positive, negatives))
    if not len(codes) or codes.shape != first.shape or rest.ndim != 2 or len(rest) != len(codes):
        raise DataError(
            f"there are users of shape {codes.shape}, positives {first.shape} and negatives {rest.shape}",
            "give at least one user, one positive each, and negatives (users, N)",
        )
    twice = np.flatnonzero((rest == first[:, None]).any(axis=1))
    if len(twice):
        raise DataError(
            f"item {first[twice[0]]} of user {codes[twice[0]]} is among its own negatives ({len(twice):,} such users)",
            "draw negatives from the other items",
        )
    candidates = np.concatenate([first[:, None], rest], axis=1)
    size = max(1, max_bytes // (32 * candidates.shape[1]))
    parts: list[UserMetrics] = []
    for start in range(0, len(codes), size):
        part = slice(start, start + size)
        scores = np.array(score(codes[part], candidates[part]))
        if scores.shape != candidates[part].shape or not np.isfinite(scores).all():
            raise DataError(
                f"`score` gave shape {scores.shape}, {int((~np.isfinite(scores)).sum()):,} not finite, for candidates "
                f"of shape {candidates[part].shape}",
                "give one finite score a candidate",
            )
        rows = np.arange(len(scores))
        pairs = RelevantPairs.of(codes[part], rows, np.zeros_like(rows), np.ones(len(rows)), scores)
        parts.append(pairs.metrics(k))
    return UserMetrics.joined(parts)
