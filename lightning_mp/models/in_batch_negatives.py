"""Candidates of a batch: its own items, and those of earlier batches, each with how often it comes up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_mp.errors import DataError
from lightning_mp.models.item_frequency import ItemFrequency
from lightning_mp.models.usable_batch import any_taken, taken_rows
from lightning_mp.models.vector_cache import VectorCache
from lightning_mp.networks.in_batch_softmax import in_batch_logits


class InBatchNegatives(nn.Module):
    """Gives each row of a batch the other rows' items as negatives; what it remembers is part of the checkpoint.

    Args:
        size: Rows of the item's vocabulary.
        log_q: Whether logits are corrected by the items' shares.
        cached: Item vectors of earlier batches that serve too.
    """

    def __init__(self, size: int, *, log_q: bool, cached: int) -> None:
        super().__init__()
        self.log_q = log_q
        self.frequency = ItemFrequency(size)
        self.cache = VectorCache(cached) if cached else None

    def forward(self, network: Any, batch: Mapping[str, Tensor], own: Tensor, *, training: bool) -> Tensor:
        """Logits of the candidates for each row, (B, C) float32; row i's own item is candidate i.

        Args:
            network: Has `user_vectors` and `item_vectors`.
            batch: Rows that say what was taken.
            own: (B,) vocabulary row of each row's item.
            training: Whether the batch is counted and remembered, and earlier vectors are used.

        Raises:
            DataError: There is one candidate: no negative.
        """
        users, items, candidates = network.user_vectors(batch), network.item_vectors(batch), own
        if training:
            self.frequency.add(own)
        if training and self.cache is not None:
            fresh, earlier = items, self.cache.rows
            if len(earlier):
                items = torch.cat([items.float(), self.cache.vectors])
                candidates = torch.cat([own, earlier.to(own.dtype)])
            self.cache.add(fresh, own)
        if len(candidates) < 2:
            problem = "the batch has one row, and the other rows are its negatives"
            raise DataError(problem, "raise `batch_size`; some thousands are usual")
        return in_batch_logits(
            users,
            items,
            own_B=own,
            candidates_C=candidates,
            temperature=float(getattr(network, "temperature", 1.0)),
            log_q_C=self.frequency.log_share(candidates) if self.log_q else None,
        )

    def enough(self, batch: dict[str, Tensor]) -> bool:
        """Whether a batch has a row that was taken and a negative for it; one without rows of label 0 always counts."""
        rows = len(taken_rows(batch)["ids"]) if any_taken(batch) else 0
        others = rows - 1 + (0 if self.cache is None else len(self.cache.rows))
        return rows == len(batch["ids"]) or (rows > 0 and others > 0)

    def reserve(self, state: dict[str, Tensor], prefix: str) -> None:
        """Take the shapes that a checkpoint's state has, so that it can be loaded."""
        if self.cache is not None:
            self.cache.reserve(state, f"{prefix}cache.")
