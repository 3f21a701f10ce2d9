"""Share of each user's positives among the first k rows of the list, averaged over the users."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.group_metric import GroupMetric
from lightning_mp.metrics.ranked_groups import RankedGroups


class Recall(GroupMetric):
    """Share of a group's positives that stand among its first `k` rows; also called hit rate where there is one.

    Of tied rows that straddle place `k`, as many count as would by chance: the value is the expectation over all
    orders of the ties. A group without a positive is left out. With more than `k` positives 1 cannot be reached.

    `update(scores, targets, groups)` takes scores (B,) of any floating dtype, targets (B,), 0 or 1, and groups (B,),
    integers. `compute()` gives a float32 scalar in [0, 1], NaN where it is undefined.

    Args:
        k: Rows of the list that count, at least 1.

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, NaN scores, targets that are not 0 or 1, or no group with
            a positive; `None` where it gave a number.
        counted: Groups that the last `compute()` is a mean of.

    Raises:
        ConfigurationError: `k` is below 1, or `update` got shapes that differ or groups in floating point.

    Example:
        >>> import torch
        >>> metric = Recall(k=2)
        >>> scores, targets = torch.tensor([0.9, 0.5, 0.5, 0.1]), torch.tensor([0, 1, 0, 1])
        >>> metric.update(scores, targets, groups=torch.tensor([4, 4, 4, 4]))
        >>> metric.compute()
        tensor(0.2500)
    """

    undefined_group = "there is no positive"

    def __init__(self, k: int = 10) -> None:
        super().__init__()
        if k < 1:
            raise ConfigurationError(f"`k` must be at least 1, got {k!r}", "use 10")
        self.k = k

    @override
    def per_group(self, ranked: RankedGroups) -> tuple[Tensor, Tensor]:
        hits = ranked.per_block(ranked.targets)
        inside = (self.k - ranked.block_rank).clamp(min=0).minimum(ranked.block_size)
        found = ranked.per_group(hits * inside.double() / ranked.block_size, ranked.block_group)
        positives = ranked.per_group(hits, ranked.block_group)
        return found / positives, (positives > 0).double()
