"""Rows ordered group by group, best score first, with ties kept together: what per-user metrics count on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGroups:
    """The rows of every group, groups in ascending order, rows by descending score, tied rows in one block.

    Inside a block rows stand by descending target, so that the order, and all that is computed from it, depends on
    the rows alone and not on how they arrived.

    Args:
        targets: (N,) float64, in that order.
        group: (N,) int64, which group a row belongs to, 0 to G - 1.
        rank: (N,) int64, place of the row in its group, from 0.
        block: (N,) int64, which block a row belongs to, 0 to K - 1.
        block_group: (K,) int64, the group of each block.
        block_rank: (K,) int64, place in the group of the block's first row.
        block_size: (K,) int64, rows that share the score.
        group_size: (G,) int64.
    """

    targets: Tensor
    group: Tensor
    rank: Tensor
    block: Tensor
    block_group: Tensor
    block_rank: Tensor
    block_size: Tensor
    group_size: Tensor

    @classmethod
    def of(cls, scores: Tensor, targets: Tensor, groups: Tensor) -> RankedGroups:
        """Order the rows.

        Args:
            scores: (N,), none of them NaN.
            targets: (N,), finite.
            groups: (N,) int64, any values.

        Example:
            >>> scores, targets = torch.tensor([0.5, 0.9, 0.5, 0.1]), torch.tensor([0.0, 1.0, 1.0, 1.0])
            >>> ranked = RankedGroups.of(scores, targets, torch.tensor([7, 7, 7, 3]))
            >>> ranked.targets.tolist(), ranked.rank.tolist(), ranked.block_size.tolist()
            ([1.0, 1.0, 1.0, 0.0], [0, 0, 1, 2], [1, 1, 2])
        """
        order = torch.argsort(targets, descending=True, stable=True)
        order = order[torch.argsort(scores[order], descending=True, stable=True)]
        order = order[torch.argsort(groups[order], stable=True)]
        scores, targets, groups = scores[order], targets[order].double(), groups[order]
        _, group, group_size = torch.unique_consecutive(groups, return_inverse=True, return_counts=True)
        start = torch.cumsum(group_size, 0) - group_size
        rank = torch.arange(len(order), device=order.device) - start[group]
        opens = rank == 0
        opens[1:] |= scores[1:] != scores[:-1]
        block = torch.cumsum(opens, 0) - 1
        return cls(
            targets=targets,
            group=group,
            rank=rank,
            block=block,
            block_group=group[opens],
            block_rank=rank[opens],
            block_size=torch.bincount(block, minlength=int(opens.sum())),
            group_size=group_size,
        )

    def per_block(self, values: Tensor) -> Tensor:
        """Sum of a value (N,) over the rows of each block, (K,)."""
        return torch.zeros(len(self.block_size), dtype=values.dtype, device=values.device).index_add(
            0, self.block, values
        )

    def per_group(self, values: Tensor, index: Tensor) -> Tensor:
        """Sum of values over each group, (G,); `index` says which group a value belongs to."""
        return torch.zeros(len(self.group_size), dtype=values.dtype, device=values.device).index_add(0, index, values)
