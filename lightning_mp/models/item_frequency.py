"""How often each item has come up in training: the share that a logQ correction needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ItemFrequency(nn.Module):
    """Counts items as they come; its state is part of the checkpoint.

    After one epoch the shares are those of the training rows. Before, they are those of the rows so far.

    Args:
        size: Rows of the item's vocabulary.

    Attributes:
        counts: (size,) int64.

    Example:
        >>> frequency = ItemFrequency(4)
        >>> frequency.add(torch.tensor([1, 1, 3, 1]))
        >>> frequency.log_share(torch.tensor([1, 3])).exp()
        tensor([0.7500, 0.2500])
    """

    counts: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(size, dtype=torch.int64))

    def add(self, rows: Tensor) -> None:
        """Count vocabulary rows, (B,) whole numbers."""
        self.counts += torch.bincount(rows.long(), minlength=len(self.counts))

    def log_share(self, rows: Tensor) -> Tensor:
        """Logarithm of each one's share, (B,) float32; one that has not come up counts as if it had once."""
        total = self.counts.sum().clamp(min=1)
        return (self.counts[rows.long()].clamp(min=1).double() / total).log().float()
