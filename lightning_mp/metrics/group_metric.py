"""Rows with scores, targets and groups, kept until the end: the state that all per-user metrics share."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.ranked_groups import RankedGroups


class GroupMetric(Metric):
    """A metric of each group (user, session, query), and the mean over the groups where it is defined.

    A subclass says what the value of a group is. All rows are ranked at once at the end: the result does not depend
    on how they were cut into batches or over processes, and a group may be spread over several.

    `update(scores, targets, groups)` takes scores (B,) of any floating dtype, widened to at least float32, targets
    (B,) and groups (B,), integers. `compute()` gives a float32 scalar, NaN where it is undefined.

    Attributes:
        reason: Why the last `compute()` gave NaN; `None` where it gave a number.
        counted: Groups that the last `compute()` is a mean of; those where the metric is undefined are left out.

    Raises:
        ConfigurationError: `update` got shapes that differ, or groups in floating point, where ids collide.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    scores: list[Tensor]
    targets: list[Tensor]
    groups: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("scores", "targets", "groups"):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.reason: str | None = None
        self.counted = 0

    @override
    def update(self, scores: Tensor, targets: Tensor, groups: Tensor) -> None:
        """Add a batch: scores (B,), targets (B,), groups (B,)."""
        name = type(self).__name__
        if not scores.shape == targets.shape == groups.shape:
            raise ConfigurationError(
                f"{name} got scores of shape {tuple(scores.shape)}, targets of shape {tuple(targets.shape)} and groups "
                f"of shape {tuple(groups.shape)}",
                "give one target and one group a score",
            )
        if groups.is_floating_point() or groups.is_complex():
            raise ConfigurationError(
                f"{name} got groups of dtype {groups.dtype}, in which large ids collide",
                "give the users as int64, as the batch has them under `group`",
            )
        scores = scores.detach().flatten()
        self.scores.append(scores if scores.dtype == torch.float64 else scores.float())
        self.targets.append(targets.detach().flatten().float())
        self.groups.append(groups.detach().flatten().long())

    @override
    def compute(self) -> Tensor:
        """The mean over the groups, a float32 scalar; NaN, with `reason`, where it is undefined."""
        self.counted = 0
        if isinstance(self.scores, list) and not self.scores:
            self.reason = "there are no rows"
            return torch.tensor(float("nan"), device=self.device)
        scores, targets, groups = (dim_zero_cat(state) for state in (self.scores, self.targets, self.groups))
        self.reason = self._wrong(scores, targets)
        if self.reason is not None:
            return torch.tensor(float("nan"), device=scores.device)
        ranked = RankedGroups.of(scores, targets, groups)
        values, weights = self.per_group(ranked)
        self.counted = int((weights > 0).sum())
        if not self.counted:
            self.reason = f"{self.undefined_group} in any of {len(weights):,} groups"
            return torch.tensor(float("nan"), device=scores.device)
        # A group without a value has weight 0, and 0 times NaN is NaN.
        total = torch.where(weights > 0, values, 0) * weights
        return (total.sum() / weights.sum()).float()

    @abstractmethod
    def per_group(self, ranked: RankedGroups) -> tuple[Tensor, Tensor]:
        """Value and weight of each group, (G,) float64 both; weight 0 where the value is undefined."""

    @property
    @abstractmethod
    def undefined_group(self) -> str:
        """What a group lacks where the metric is undefined, as in "there is no positive"."""

    @override
    def reset(self) -> None:
        super().reset()
        self.reason, self.counted = None, 0

    def _wrong(self, scores: Tensor, targets: Tensor) -> str | None:
        rows = scores.numel()
        if not rows:
            return "there are no rows"
        if lost := int(scores.isnan().sum()):
            return f"{lost:,} of {rows:,} scores are NaN"
        if odd := int((~self.allowed(targets)).sum()):
            return f"{odd:,} of {rows:,} targets are {self.not_allowed}"
        return None

    not_allowed = "neither 0 nor 1"

    def allowed(self, targets: Tensor) -> Tensor:
        """Which targets the metric is defined for, (N,) bool."""
        return (targets == 0) | (targets == 1)
