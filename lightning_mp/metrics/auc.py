"""Area under the ROC curve that says "undefined" rather than a number that lies."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from lightning_mp.errors import ConfigurationError


class AUC(Metric):
    """Probability that a positive is scored above a negative, a tie counting one half.

    Only the order of the scores matters, so logits, probabilities and counts do equally well; none is squashed
    through a sigmoid, which would turn large float32 logits into ties. The pairs are counted in integers over
    all rows at once: the value does not depend on how the rows were cut into batches or over processes.

    `update(scores, targets)` takes scores (B,) of any floating dtype, widened to at least float32, and targets (B,),
    0 or 1. `compute()` gives a float32 scalar, NaN where it is undefined.

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, NaN scores, targets that are not 0 or 1, or targets
            of one class; `None` where it gave a number.

    Raises:
        ConfigurationError: `update` got scores and targets of different shapes.

    Example:
        >>> metric = AUC()
        >>> metric.update(torch.tensor([2.0, -1.0, 0.5, 0.5]), torch.tensor([1, 0, 1, 0]))
        >>> metric.compute()
        tensor(0.8750)
        >>> metric.reset()
        >>> metric.update(torch.tensor([2.0, -1.0]), torch.tensor([1, 1]))
        >>> metric.compute(), metric.reason
        (tensor(nan), 'all 2 targets are 1')

    Source:
        Hanley and McNeil, The meaning and use of the area under a ROC curve, Radiology 143, 1982.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    scores: list[Tensor]
    targets: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("targets", default=[], dist_reduce_fx="cat")
        self.reason: str | None = None

    @override
    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores (B,), targets (B,)."""
        if scores.shape != targets.shape:
            raise ConfigurationError(
                f"AUC got scores of shape {tuple(scores.shape)} and targets of shape {tuple(targets.shape)}",
                "give one target a score",
            )
        scores = scores.detach().flatten()
        self.scores.append(scores if scores.dtype == torch.float64 else scores.float())
        self.targets.append(targets.detach().flatten().float())

    @override
    def compute(self) -> Tensor:
        """The area, a float32 scalar; NaN, with `reason`, where it is undefined."""
        if isinstance(self.scores, list) and not self.scores:
            self.reason = "there are no rows"
            return torch.tensor(float("nan"), device=self.device)
        scores, targets = dim_zero_cat(self.scores), dim_zero_cat(self.targets)
        self.reason = _undefined(scores, targets)
        if self.reason is not None:
            return torch.tensor(float("nan"), device=scores.device)
        order = torch.argsort(scores)
        positive = (targets[order] == 1).long()
        _, group, size = torch.unique_consecutive(scores[order], return_inverse=True, return_counts=True)
        positives = torch.zeros_like(size).index_add(0, group, positive)
        negatives = size - positives
        below = torch.cumsum(negatives, 0) - negatives
        twice_won = (positives * (2 * below + negatives)).sum()
        area: Tensor = twice_won.double() / (2 * positives.sum() * negatives.sum()).double()
        return area.float()

    @override
    def reset(self) -> None:
        super().reset()
        self.reason = None


def _undefined(scores: Tensor, targets: Tensor) -> str | None:
    rows = scores.numel()
    if not rows:
        return "there are no rows"
    if lost := int(scores.isnan().sum()):
        return f"{lost:,} of {rows:,} scores are NaN"
    if odd := int(((targets != 0) & (targets != 1)).sum()):
        return f"{odd:,} of {rows:,} targets are neither 0 nor 1"
    positives = int(targets.sum(dtype=torch.float64))
    if positives in (0, rows):
        return f"all {rows:,} targets are {1 if positives else 0}"
    return None
