"""Item vectors of earlier batches, as further negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VectorCache(nn.Module):
    """Keeps the item vectors of the latest batches: negatives that cost no forward pass.

    The vectors are those of slightly older weights, which serves as long as the weights change slowly. What is kept is
    part of the checkpoint, so that a resumed run sees the same negatives.

    Args:
        size: Vectors kept, K.

    Attributes:
        vectors: (up to K, E) float32, the oldest first.
        rows: (up to K,) int64, their vocabulary rows.

    Example:
        >>> cache = VectorCache(3)
        >>> cache.add(torch.eye(2), torch.tensor([5, 6]))
        >>> cache.add(torch.eye(2), torch.tensor([7, 8]))
        >>> cache.rows.tolist(), tuple(cache.vectors.shape)
        ([6, 7, 8], (3, 2))

    Source:
        Wang et al., Cross-Batch Negative Sampling for Training Two-Tower Recommenders, SIGIR 2021.
    """

    vectors: Tensor
    rows: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("vectors", torch.zeros(0, 0))
        self.register_buffer("rows", torch.zeros(0, dtype=torch.int64))

    def add(self, vectors: Tensor, rows: Tensor) -> None:
        """Keep the vectors (B, E) of a batch and their vocabulary rows (B,); the oldest ones go."""
        fresh = vectors.detach().float()
        kept = fresh if not len(self.rows) else torch.cat([self.vectors, fresh])
        self.vectors, self.rows = kept[-self.size :], torch.cat([self.rows, rows.long()])[-self.size :]

    def reserve(self, state: dict[str, Tensor], prefix: str) -> None:
        """Take the shapes that a checkpoint's state has, so that it can be loaded."""
        for name in ("vectors", "rows"):
            if prefix + name in state:
                setattr(self, name, torch.zeros_like(state[prefix + name], device=self.rows.device))
