"""Training batches without anything to learn from: a loss of 0, and one warning that counts them."""

from __future__ import annotations

from collections.abc import Mapping

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.functional import embedding

from lightning_mp.errors import DataError, LightningMPWarning


class IdleBatches:
    """Counts what training passes over, and gives a batch without anything to learn from a loss of 0.

    That loss has a graph to every parameter, so that loss scaling and several processes go on as in any other step.
    """

    def __init__(self) -> None:
        self._learnt = self._idle = self._idle_rows = self._left_out = 0
        self._told = False

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """A float32 zero whose gradients are zero.

        Args:
            module: That is trained.
            batch: That has nothing to learn from; it is counted.
        """
        self._idle += 1
        self._idle_rows += len(next(iter(batch.values())))
        kinds = (nn.Embedding, nn.EmbeddingBag)
        sparse = {id(part.weight) for part in module.modules() if isinstance(part, kinds) and part.sparse}
        nothing = [
            # An optimizer of sparse gradients takes no dense ones, not even zeros.
            embedding(torch.zeros(0, dtype=torch.int64, device=p.device), p, sparse=True)
            if id(p) in sparse
            else p.flatten()[:0]
            for p in module.parameters()
            if p.requires_grad
        ]
        return torch.stack([part.float().sum() for part in nothing]).sum()

    def learnt(self, *, left_out: int = 0) -> None:
        """Count a batch that was learnt from, and its rows that were left out because their item is unknown."""
        self._learnt += 1
        self._left_out += left_out

    def tell(self, module: pl.LightningModule) -> None:
        """Warn at the end of an epoch of what was passed over, once.

        Args:
            module: That is trained, by a Trainer.

        Raises:
            DataError: No batch since the run began had anything to learn from.
        """
        hint = "lower `min_count` of the item, prepare with `label: {taken: order}`, or raise `batch_size`"
        trainer = module.trainer
        if self._idle and not self._learnt and trainer.world_size == 1 and trainer.global_step <= self._idle:
            problem = f"none of the {self._idle:,} training batches has a row of a known item that was taken"
            raise DataError(problem, hint)
        if (self._idle or self._left_out) and not self._told:
            self._told = True
            idle = (
                f"{self._idle:,} training batches ({self._idle_rows:,} rows) had nothing to learn from: their loss is 0"
            )
            few = f"{self._left_out:,} rows of other training batches were left out: their item is unknown"
            said = "; ".join(text for text, count in ((idle, self._idle), (few, self._left_out)) if count)
            rank_zero_warn(f"{said}\n\nhint: {hint}", category=LightningMPWarning)
