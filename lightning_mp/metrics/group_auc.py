"""AUC inside each user, averaged over the users: whether the rows of one list are in the right order."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.group_metric import GroupMetric
from lightning_mp.metrics.ranked_groups import RankedGroups


class GroupAUC(GroupMetric):
    """Mean over the groups of the AUC inside the group (GAUC): positives are compared with their own negatives only.

    A group whose targets are of one class has no AUC and is left out. A tie counts one half, as in `AUC`. Pairs are
    counted in integers. Of scores that know how the group's earlier rows ended it says little: those after a positive
    row stand apart from those before it, learned or not.

    `update(scores, targets, groups)` takes scores (B,) of any floating dtype, targets (B,), 0 or 1, and groups (B,),
    integers. `compute()` gives a float32 scalar, NaN where it is undefined.

    Args:
        weight: `"rows"`: a group counts as often as it has rows, as published. `"equal"`: each counts once.

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, NaN scores, targets that are not 0 or 1, or no group with
            both classes; `None` where it gave a number.
        counted: Groups that the last `compute()` is a mean of.

    Raises:
        ConfigurationError: `weight` is something else, or `update` got shapes that differ or groups in floating point.

    Example:
        >>> metric = GroupAUC()
        >>> scores, targets = torch.tensor([2.0, 1.0, 3.0, 9.0]), torch.tensor([1, 0, 0, 1])
        >>> metric.update(scores, targets, groups=torch.tensor([5, 5, 5, 8]))
        >>> metric.compute(), metric.counted
        (tensor(0.5000), 1)

    Source:
        Zhou et al., Deep Interest Network for click-through rate prediction, KDD 2018, section 6.2.
    """

    undefined_group = "there are not both classes"

    def __init__(self, *, weight: Literal["rows", "equal"] = "rows") -> None:
        super().__init__()
        if weight not in ("rows", "equal"):
            raise ConfigurationError(f"`weight` must be 'rows' or 'equal', got {weight!r}", "leave it out")
        self.weight = weight

    @override
    def per_group(self, ranked: RankedGroups) -> tuple[Tensor, Tensor]:
        positives = ranked.per_block(ranked.targets.long())
        negatives = ranked.block_size - positives
        positive, negative = (ranked.per_group(count, ranked.block_group) for count in (positives, negatives))
        # Negatives up to here less those of the groups before: what stands above the block and in it.
        before = torch.cumsum(negative, 0) - negative
        down_to_here = torch.cumsum(negatives, 0) - before[ranked.block_group]
        below = negative[ranked.block_group] - down_to_here
        twice_won = ranked.per_group(positives * (2 * below + negatives), ranked.block_group)
        pairs = positive * negative
        weight = ranked.group_size.double() if self.weight == "rows" else torch.ones_like(pairs, dtype=torch.float64)
        return twice_won.double() / (2 * pairs).double(), torch.where(pairs > 0, weight, 0)
