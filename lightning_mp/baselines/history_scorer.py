"""Scores of all items from what a user did: the form that nearly every simple recommender has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryScorer:
    """A user's scores of all items: history (1, V) times weights (V, V) plus an offset; for `full_ranking`.

    Users without a history get `otherwise`, such as the popularity of the items, rather than a row of zeros in
    which all items tie.

    Args:
        history: (U, V) sparse: what each user did.
        weights: (V, V): what a thing done says of each item, one row a thing done; `None`: of itself alone.
        part: (P,) codes of the items that `weights`, then (P, P), are over; the others score 0.
        offset: (V,) added to every user's scores; `None`: nothing.
        otherwise: (V,) scores for users without a history; `None`: `offset`, or zeros.

    Raises:
        DataError: On use: a user's or an item's code is not among the matrix's.

    Example:
        >>> from scipy.sparse import csr_array
        >>> scorer = HistoryScorer(history=csr_array([[2, 0], [0, 0]]), otherwise=np.array([0.5, 1.5]))
        >>> scorer(np.array([0, 1]))
        array([[2. , 0. ],
               [0.5, 1.5]])
        >>> scorer.of_pairs([1, 0], [1, 0])
        array([1.5, 2. ])
    """

    history: csr_array
    weights: csr_array | Floats | None = None
    part: NDArray[np.int64] | None = None
    offset: Floats | None = None
    otherwise: Floats | None = None

    def __call__(self, users: NDArray[np.int64]) -> Floats:
        """Scores for all items, (B, V) float64.

        Args:
            users: (B,) codes.
        """
        wanted = self._known(users, "user", self.history.shape[0])
        lines = self.history[wanted]
        done = lines if self.part is None else lines[:, self.part]
        scores = done if self.weights is None else done @ self.weights
        dense = np.asarray(scores if isinstance(scores, np.ndarray) else scores.toarray(), dtype=np.float64)
        if self.part is not None:
            dense, some = np.zeros((len(wanted), self.history.shape[1])), dense
            dense[:, self.part] = some
        if self.offset is not None:
            dense += self.offset
        if self.otherwise is not None:
            dense[np.diff(lines.indptr) == 0] = self.otherwise
        return dense

    def of_pairs(self, user: ArrayLike, item: ArrayLike, *, max_bytes: int = 2**26) -> Floats:
        """Score of each pair.

        Args:
            user: (M,) codes.
            item: (M,) codes.
            max_bytes: Memory for the scores of several users at a time.

        Returns:
            (M,) float64, in the order of the pairs.
        """
        users = self._known(user, "user", self.history.shape[0])
        items = self._known(item, "item", self.history.shape[1])
        result = np.empty(len(users))
        known, place = np.unique(users, return_inverse=True)
        order = np.argsort(place, kind="stable")
        size = max(1, max_bytes // (8 * self.history.shape[1]))
        for start in range(0, len(known), size):
            first, last = np.searchsorted(place[order], [start, start + size])
            rows = order[first:last]
            result[rows] = self(known[start : start + size])[place[rows] - start, items[rows]]
        return result

    def of_candidates(self, users: NDArray[np.int64], candidates: NDArray[np.int64]) -> Floats:
        """Scores of some items of each user, (B, C) float64; for `sampled_ranking`.

        Args:
            users: (B,) codes.
            candidates: (B, C) codes of items.
        """
        items = self._known(candidates, "item", self.history.shape[1])
        return np.asarray(np.take_along_axis(self(users), items, axis=1))

    @staticmethod
    def _known(codes: ArrayLike, name: str, limit: int) -> NDArray[np.int64]:
        wanted = np.asarray(codes, dtype=np.int64)
        wrong = wanted[(wanted < 0) | (wanted >= limit)]
        if len(wrong):
            raise DataError(
                f"{name} code {wrong[0]} is outside 0 to {limit - 1:,}", f"give codes of the store's {name}s"
            )
        return wanted
