"""Rows whose next item is asked for, gathered from the batches of an epoch and ranked at its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_mp.data.known_pairs import known_pairs
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.metrics.full_ranking import full_ranking
from lightning_mp.metrics.user_metrics import UserMetrics
from lightning_mp.models.ranked_items import Asked, only_present, parts_before

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredQueries:
    """What was gathered.

    Attributes:
        row: (Q,) int64, rows of the source log.
        states: (Q, E) float32, the state after each row's history.
    """

    row: Ints
    states: npt.NDArray[np.float32]

    def ranked(
        self,
        store: FeatureStore,
        part: str,
        asked: Asked,
        *,
        vectors: npt.NDArray[np.float32],
        known: npt.NDArray[np.bool_],
    ) -> UserMetrics | None:
        """Rank all items of the store after each row's history; relevant is the row's own item.

        Args:
            store: Its rows know their users and items.
            part: `"validation"` or `"test"`.
            asked: Length of the lists and candidates.
            vectors: (C, E) of all items.
            known: (C,) which of them are candidates; the others come last.

        Returns:
            Metrics a row; `None` where no row is asked for.
        """
        table = store.load(part, asked.version)
        order = np.argsort(table.row)
        place = order[np.searchsorted(table.row[order], self.row)]
        relevant = known_pairs(np.arange(len(place)), table.item[place], (len(place), len(vectors)))
        seen = None
        if asked.exclude_seen:
            seen = self._seen(store, part, place, len(vectors), asked.version)
            relevant = relevant - relevant.multiply(seen)
            relevant.eliminate_zeros()
        if not relevant.nnz:
            return None

        def score(queries: Ints) -> npt.NDArray[np.float32]:
            return only_present(self.states[queries] @ vectors.T, known)

        return full_ranking(score, relevant, seen=seen, k=asked.k)

    def _seen(self, store: FeatureStore, part: str, place: Ints, items: int, version: int | None) -> object:
        """(Q, C): items of the user's rows before each row, those of its own part among them."""
        here = store.load(part, version)
        tables = [*(store.load(name, version) for name in parts_before(store, part, version)), here]
        user, item, time = (np.concatenate([getattr(t, name) for t in tables]) for name in ("user", "item", "time"))
        order = np.lexsort((time, user))
        moments, ranks = np.unique(time, return_inverse=True)
        keys = user[order] * (len(moments) + 1) + ranks[order]
        own = here.user[place] * (len(moments) + 1)
        first, end = np.searchsorted(keys, own), np.searchsorted(keys, own + np.searchsorted(moments, here.time[place]))
        count = end - first
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        query = np.repeat(np.arange(len(place)), count)
        return known_pairs(query, item[order][np.repeat(first, count) + within], (len(place), items))


class NextItemQueries:
    """Keeps the row and the state of each query, each row once."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._states: list[Tensor] = []

    def add(self, rows: Tensor, states: Tensor) -> None:
        """Take in a batch: rows of the log (B,) and states (B, E)."""
        self._rows.append(rows.cpu())
        self._states.append(states.detach().float().cpu())

    def take(self) -> GatheredQueries | None:
        """What was gathered, and forget it; `None` where nothing was."""
        rows, self._rows = self._rows, []
        states, self._states = self._states, []
        if not rows:
            return None
        row, first = np.unique(torch.cat(rows).numpy(), return_index=True)
        return GatheredQueries(row=row, states=torch.cat(states).numpy()[first])
