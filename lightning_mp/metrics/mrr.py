"""One over the place of each user's first positive, averaged over the users."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.group_metric import GroupMetric
from lightning_mp.metrics.ranked_groups import RankedGroups


class MRR(GroupMetric):
    """Mean reciprocal rank: 1 where the first row of a group is positive, 1/2 where the second is, and so on.

    Where the first positive is tied with others, the value is the expectation over all orders of the ties. A group
    without a positive is left out.

    `update(scores, targets, groups)` takes scores (B,) of any floating dtype, targets (B,), 0 or 1, and groups (B,),
    integers. `compute()` gives a float32 scalar in [0, 1], NaN where it is undefined.

    Args:
        k: A positive after place `k` counts 0; `None`: none does.

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, NaN scores, targets that are not 0 or 1, or no group with
            a positive; `None` where it gave a number.
        counted: Groups that the last `compute()` is a mean of.

    Raises:
        ConfigurationError: `k` is below 1, or `update` got shapes that differ or groups in floating point.

    Example:
        >>> metric = MRR()
        >>> scores, targets = torch.tensor([0.9, 0.8, 0.1, 0.7]), torch.tensor([0, 1, 1, 1])
        >>> metric.update(scores, targets, groups=torch.tensor([4, 4, 4, 6]))
        >>> metric.compute()
        tensor(0.7500)

    Source:
        Voorhees, The TREC-8 question answering track report, 1999; ties: McSherry and Najork, Computing information
        retrieval performance measures efficiently in the presence of tied scores, ECIR 2008.
    """

    undefined_group = "there is no positive"

    def __init__(self, k: int | None = None) -> None:
        super().__init__()
        if k is not None and k < 1:
            raise ConfigurationError(f"`k` must be at least 1, got {k!r}", "leave it out for the whole list")
        self.k = k

    @override
    def per_group(self, ranked: RankedGroups) -> tuple[Tensor, Tensor]:
        positives = ranked.per_block(ranked.targets)
        has = positives > 0
        block_of_group = ranked.block_group[has]
        opens = torch.ones_like(block_of_group, dtype=torch.bool)
        opens[1:] = block_of_group[1:] != block_of_group[:-1]
        first = torch.zeros_like(has)
        first[has.nonzero()[:, 0][opens]] = True
        # Rows of the blocks in which a group's first positive is: j-th of n rows of which m are positive.
        rows = first[ranked.block]
        block, rank = ranked.block[rows], ranked.rank[rows]
        n, m = ranked.block_size[block].double(), positives[block]
        j = (rank - ranked.block_rank[block]).double() + 1
        value = _first_at(j, n, m) / (rank + 1).double()
        if self.k is not None:
            value = torch.where(rank < self.k, value, 0)
        found = torch.zeros_like(ranked.group_size, dtype=torch.bool).index_fill(0, block_of_group, True)
        return ranked.per_group(value, ranked.group[rows]), found.double()


def _first_at(j: Tensor, n: Tensor, m: Tensor) -> Tensor:
    """Chance that in a random order of n rows the first of m positives is the j-th: C(n - j, m - 1) / C(n, m)."""
    possible = j <= n - m + 1
    free = torch.where(possible, n - j, m - 1)
    chosen = _log_choose(free, m - 1) - _log_choose(n, m)
    return torch.where(possible, chosen.exp(), 0)


def _log_choose(n: Tensor, m: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)
