"""What each user's list was worth, and the means over users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.errors import DataError

Floats = NDArray[np.float64]
NAMES: Final = ("ndcg", "recall", "precision", "hit_rate", "mrr")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMetrics:
    """Metrics of each user with at least one relevant item; ties counted as the expectation over their orders.

    Args:
        k: Items of each list that count.
        users: (U,) int64 codes.
        relevant: (U,) int64, relevant items of each.
        ndcg: (U,) float64 in [0, 1], normalised by the best list of `k` items.
        recall: (U,) float64, relevant items among the first `k` over all relevant ones.
        precision: (U,) float64, relevant items among the first `k` over `k`.
        hit_rate: (U,) float64, chance of at least one relevant item among the first `k`.
        mrr: (U,) float64, one over the place of the first relevant item in the whole list.
        slices: The same for relevant items of one slice only, by its name; users without one are left out.

    Example:
        >>> one, half = np.array([1.0, 1.0]), np.array([1.0, 0.5])
        >>> users = UserMetrics(
        ...     k=2, users=np.array([3, 8]), relevant=np.array([2, 1]),
        ...     ndcg=half, recall=one, precision=half, hit_rate=one, mrr=half,
        ... )
        >>> users.mean()["ndcg"], users.where(np.array([False, True])).mean()["ndcg"]
        (0.75, 0.5)
    """

    k: int
    users: NDArray[np.int64]
    relevant: NDArray[np.int64]
    ndcg: Floats
    recall: Floats
    precision: Floats
    hit_rate: Floats
    mrr: Floats
    slices: dict[str, UserMetrics] = field(default_factory=dict)

    def mean(self) -> dict[str, float]:
        """Means over the users: `ndcg`, `recall`, `precision`, `hit_rate`, `mrr`; NaN where there are no users."""
        return {name: float(np.mean(getattr(self, name))) if len(self.users) else float("nan") for name in NAMES}

    def where(self, chosen: NDArray[np.bool_]) -> UserMetrics:
        """The users chosen by a mask (U,) over `users`, such as those that training did not know; without slices.

        Raises:
            DataError: The mask is not one of (U,) booleans.
        """
        if chosen.shape != self.users.shape or chosen.dtype != np.bool_:
            raise DataError(
                f"the mask has shape {chosen.shape} and dtype {chosen.dtype}, there are {len(self.users):,} users",
                "give one boolean a user, such as `np.isin(result.users, known)`",
            )
        parts = {name: getattr(self, name)[chosen] for name in ("users", "relevant", *NAMES)}
        return replace(self, slices={}, **parts)

    @classmethod
    def joined(cls, parts: Sequence[UserMetrics], slices: dict[str, UserMetrics] | None = None) -> UserMetrics:
        """The users of several results of one `k`, one after the other."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in ("users", "relevant", *NAMES)
        }
        return cls(k=parts[0].k, slices=slices or {}, **columns)
