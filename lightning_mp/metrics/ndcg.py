"""Normalised discounted cumulative gain of each user's list, averaged over the users."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.group_metric import GroupMetric
from lightning_mp.metrics.ranked_groups import RankedGroups


class NDCG(GroupMetric):
    """How much of the best possible gain the first `k` rows of each group have, later places counting less.

    The gain of a row is its target, discounted by log2(place + 1). Tied rows have, each, the mean discount of the
    places that they take together: the value is the expectation over all orders of the ties, so a constant score
    earns what a random order would. A group without a target above 0 has no best gain and is left out.

    `update(scores, targets, groups)` takes scores (B,) of any floating dtype, targets (B,), finite and at least 0, and
    groups (B,), integers. `compute()` gives a float32 scalar in [0, 1], NaN where it is undefined.

    Args:
        k: Rows of the list that count, at least 1; `None`: all.

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, NaN scores, targets below 0 or not finite, or no group with
            a target above 0; `None` where it gave a number.
        counted: Groups that the last `compute()` is a mean of.

    Raises:
        ConfigurationError: `k` is below 1, or `update` got shapes that differ or groups in floating point.

    Example:
        >>> metric = NDCG(k=2)
        >>> scores, targets = torch.tensor([0.9, 0.8, 0.1]), torch.tensor([0, 1, 1])
        >>> metric.update(scores, targets, groups=torch.tensor([4, 4, 4]))
        >>> metric.compute()
        tensor(0.3869)

    Source:
        Järvelin and Kekäläinen, Cumulated gain-based evaluation of IR techniques, TOIS 20, 2002; ties: McSherry and
        Najork, Computing information retrieval performance measures efficiently in the presence of tied scores,
        ECIR 2008.
    """

    undefined_group = "there is no target above 0"
    not_allowed = "below 0 or not finite"

    def __init__(self, k: int | None = 10) -> None:
        super().__init__()
        if k is not None and k < 1:
            raise ConfigurationError(f"`k` must be at least 1, got {k!r}", "use 10, or None for the whole list")
        self.k = k

    @override
    def allowed(self, targets: Tensor) -> Tensor:
        return (targets >= 0) & targets.isfinite()

    @override
    def per_group(self, ranked: RankedGroups) -> tuple[Tensor, Tensor]:
        gain, group = ranked.targets, ranked.group
        discount = self._discount(ranked.rank)
        shared = (ranked.per_block(discount) / ranked.block_size)[ranked.block]
        reached = ranked.per_group(gain * shared, group)
        order = torch.argsort(gain, descending=True, stable=True)
        order = order[torch.argsort(group[order], stable=True)]
        best = ranked.per_group(gain[order] * discount, group)
        return reached / best, (best > 0).double()

    def _discount(self, rank: Tensor) -> Tensor:
        discount = 1 / torch.log2(rank.double() + 2)
        return discount if self.k is None else torch.where(rank < self.k, discount, 0)
