"""Relevant items with their places in the lists of a chunk of users, and the metrics that follow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lightning_mp.metrics.tied_ranks import chance_of_a_hit, expected_discount, expected_hits, expected_reciprocal_rank
from lightning_mp.metrics.user_metrics import UserMetrics

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevantPairs:
    """The relevant items of some users in the order of the users, and where each stands.

    Args:
        users: (U,) codes.
        row: (P,) index into `users`, ascending.
        item: (P,) codes.
        gain: (P,) above 0.
        higher: (P,) items of the user's list with a higher score.
        equal: (P,) items with the same score, itself included.
    """

    users: Ints
    row: Ints
    item: Ints
    gain: Floats
    higher: Ints
    equal: Ints

    @classmethod
    def of(cls, users: Ints, row: Ints, item: Ints, gain: Floats, scores: NDArray[np.floating]) -> RelevantPairs:
        """Find the places.

        Args:
            users: (U,) codes.
            row: (P,) index into `users`, ascending.
            item: (P,) columns of `scores`.
            gain: (P,).
            scores: (U, V), -inf for items that are no candidates.
        """
        mine = scores[row, item]
        ordered = np.sort(scores, axis=1)
        higher, equal = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        starts = np.searchsorted(row, np.arange(len(users) + 1))
        for user, (start, stop) in enumerate(pairwise(starts)):
            part, line = mine[start:stop], ordered[user]
            after = np.searchsorted(line, part, side="right")
            higher[start:stop] = len(line) - after
            equal[start:stop] = after - np.searchsorted(line, part, side="left")
        return cls(users=users, row=row, item=item, gain=gain, higher=higher, equal=equal)

    def metrics(self, k: int, chosen: NDArray[np.bool_] | None = None) -> UserMetrics:
        """The users' metrics at `k`; `chosen` (P,) leaves some relevant items out, and users who have no other."""
        pairs = slice(None) if chosen is None else chosen
        gain, higher, equal = self.gain[pairs], self.higher[pairs], self.equal[pairs]
        kept, row, relevant = np.unique(self.row[pairs], return_inverse=True, return_counts=True)
        users = len(kept)
        reached = np.bincount(row, gain * expected_discount(higher, equal, k), users)
        best_first = np.lexsort((-gain, row))
        place = np.arange(len(row)) - np.repeat(np.cumsum(relevant) - relevant, relevant)
        best = np.bincount(row, gain[best_first] * expected_discount(place, np.ones_like(place), k), users)
        hits = np.bincount(row, expected_hits(higher, equal, k), users)
        first = np.full(users, np.iinfo(np.int64).max)
        np.minimum.at(first, row, higher)
        in_first = higher == first[row]
        ties = np.zeros(users, np.int64)
        ties[row[in_first]] = equal[in_first]
        positives = np.bincount(row[in_first], minlength=users)
        return UserMetrics(
            k=k,
            users=self.users[kept],
            relevant=relevant,
            ndcg=reached / best,
            recall=hits / relevant,
            precision=hits / k,
            hit_rate=chance_of_a_hit(first, ties, positives, k),
            mrr=expected_reciprocal_rank(first, ties, positives),
        )
