"""What a ranking is worth where scores tie: the expectation over all orders of the tied rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def expected_hits(higher: Ints, equal: Ints, k: int) -> Floats:
    """Chance that a row is among the first `k`, the `higher` rows before it and its `equal` ties, itself included.

    Example:
        >>> expected_hits(np.array([0, 1, 5]), np.array([1, 4, 1]), k=3)
        array([1. , 0.5, 0. ])
    """
    return np.asarray((np.minimum(higher + equal, k) - np.minimum(higher, k)) / equal, dtype=np.float64)


def expected_discount(higher: Ints, equal: Ints, k: int) -> Floats:
    """Mean of 1 / log2(place + 1) over the places that a row can take, 0 after place `k`.

    Example:
        >>> expected_discount(np.array([0, 1]), np.array([1, 2]), k=2).round(4)
        array([1.    , 0.3155])
    """
    places = int(min(k, (higher + equal).max(initial=0)))
    total = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, places + 2)))])
    first, last = np.minimum(higher, places), np.minimum(higher + equal, places)
    return np.asarray((total[last] - total[first]) / equal, dtype=np.float64)


def expected_reciprocal_rank(higher: Ints, equal: Ints, positives: Ints) -> Floats:
    """Mean of 1 / place of the first positive, `higher` rows before its block of `equal` rows with `positives` in it.

    Example:
        >>> expected_reciprocal_rank(np.array([0, 1]), np.array([2, 1]), np.array([1, 1]))
        array([0.75, 0.5 ])
    """
    value = 1 / (higher + 1.0)
    tied = np.flatnonzero(equal > positives)
    if not len(tied):
        return np.asarray(value, dtype=np.float64)
    cases, of = np.unique(np.stack([higher[tied], equal[tied], positives[tied]]), axis=1, return_inverse=True)
    means = np.array([_one_block(*(int(part) for part in case)) for case in cases.T])
    value[tied] = means[of.ravel()]
    return np.asarray(value, dtype=np.float64)


def chance_of_a_hit(higher: Ints, equal: Ints, positives: Ints, k: int) -> Floats:
    """Chance that one of the positives of a block is among the first `k` rows.

    Example:
        >>> one, ten = np.array([1]), np.array([10])
        >>> chance_of_a_hit(np.array([0]), ten, one, k=10), chance_of_a_hit(one, ten, one, k=4)
        (array([1.]), array([0.3]))
    """
    places = np.clip(k - higher, 0, equal)
    # 1 - C(equal - positives, places) / C(equal, places): all places go to others.
    missed = _log_choose(equal - positives, places) - _log_choose(equal, places)
    return np.asarray(np.where(places > equal - positives, 1.0, 0.0 - np.expm1(missed)), dtype=np.float64)


def _one_block(higher: int, equal: int, positives: int) -> float:
    place = np.arange(1, equal - positives + 2)
    chance = np.exp(_log_choose(equal - place, positives - 1) - _log_choose(equal, positives))
    return float((chance / (higher + place)).sum())


def _log_choose(n: NDArray[np.int64] | int, m: NDArray[np.int64] | int) -> Floats:
    from scipy.special import gammaln

    rest = np.maximum(np.asarray(n) - m, 0)
    return np.asarray(gammaln(np.asarray(n) + 1.0) - gammaln(np.asarray(m) + 1.0) - gammaln(rest + 1.0))
