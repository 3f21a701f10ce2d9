"""How far predicted probabilities are from what happened, bin by bin."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from typing_extensions import override

from lightning_mp.errors import ConfigurationError


class CalibrationError(Metric):
    """Expected calibration error: mean distance between the predicted and the observed rate, over bins of the score.

    Each bin counts as often as it has rows. 0 is perfect; a model that is right on average and says nothing of single
    rows also has 0, so read it beside an AUC. `CalibrationRatio` says in which direction a model errs.

    `update(scores, targets)` takes scores (B,) of any floating dtype, widened to float64, and targets (B,) in [0, 1].
    `compute()` gives a float32 scalar in [0, 1], NaN where it is undefined. Targets of one class are no obstacle.

    Args:
        bins: Number of bins, at least 1.
        binning: `"width"`: [0, 1] in equal parts, as published; where nearly all probabilities are small, as click
            rates are, they share one bin. `"mass"`: equal numbers of rows; rows of one score share a bin.
        from_logits: Whether `update` is given logits, or else probabilities in [0, 1].

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, scores that are not finite or no probabilities, or
            targets outside [0, 1]; `None` where it gave a number.

    Raises:
        ConfigurationError: `bins` is below 1, `binning` is something else, or `update` got shapes that differ.

    Example:
        >>> metric = CalibrationError(from_logits=False)
        >>> metric.update(torch.tensor([0.8, 0.8, 0.1, 0.1]), torch.tensor([1, 0, 0, 0]))
        >>> metric.compute()
        tensor(0.2000)

    Source:
        Naeini, Cooper and Hauskrecht, Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015;
        Guo et al., On calibration of modern neural networks, ICML 2017 (15 bins of equal width).
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    scores: list[Tensor]
    targets: list[Tensor]

    def __init__(
        self, bins: int = 15, *, binning: Literal["width", "mass"] = "width", from_logits: bool = True
    ) -> None:
        super().__init__()
        if bins < 1:
            raise ConfigurationError(f"`bins` must be at least 1, got {bins!r}", "use 15")
        if binning not in ("width", "mass"):
            raise ConfigurationError(f"`binning` must be 'width' or 'mass', got {binning!r}", "leave it out")
        self.bins, self.binning, self.from_logits = bins, binning, from_logits
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("targets", default=[], dist_reduce_fx="cat")
        self.reason: str | None = None

    @override
    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores (B,), targets (B,)."""
        if scores.shape != targets.shape:
            raise ConfigurationError(
                f"CalibrationError got scores of shape {tuple(scores.shape)} and targets of shape "
                f"{tuple(targets.shape)}",
                "give one target a score",
            )
        scores = scores.detach().flatten()
        self.scores.append(scores if scores.dtype == torch.float64 else scores.float())
        self.targets.append(targets.detach().flatten().float())

    @override
    def compute(self) -> Tensor:
        """The error, a float32 scalar; NaN, with `reason`, where it is undefined."""
        if isinstance(self.scores, list) and not self.scores:
            self.reason = "there are no rows"
            return torch.tensor(float("nan"), device=self.device)
        scores, targets = dim_zero_cat(self.scores).double(), dim_zero_cat(self.targets).double()
        self.reason = self._wrong(scores, targets)
        if self.reason is not None:
            return torch.tensor(float("nan"), device=scores.device)
        # In a stated order, so that the sums do not depend on how the rows arrived.
        order = torch.argsort(targets, stable=True)
        order = order[torch.argsort(scores[order], stable=True)]
        scores, targets = scores[order], targets[order]
        chance = torch.sigmoid(scores) if self.from_logits else scores
        place = chance if self.binning == "width" else _share_below(scores)
        index = (place * self.bins).long().clamp(max=self.bins - 1)
        # (predicted - observed) of a bin times its share of the rows is its part of the mean difference.
        parts = torch.zeros(self.bins, dtype=torch.float64, device=scores.device).index_add(0, index, chance - targets)
        error: Tensor = (parts.abs().sum() / len(scores)).float()
        return error

    @override
    def reset(self) -> None:
        super().reset()
        self.reason = None

    def _wrong(self, scores: Tensor, targets: Tensor) -> str | None:
        rows = scores.numel()
        if not rows:
            return "there are no rows"
        usable = scores.isfinite() if self.from_logits else (scores >= 0) & (scores <= 1)
        if lost := int((~usable).sum()):
            kind = "logits are not finite" if self.from_logits else "probabilities are outside [0, 1]"
            return f"{lost:,} of {rows:,} {kind}"
        if odd := int((~((targets >= 0) & (targets <= 1))).sum()):
            return f"{odd:,} of {rows:,} targets are outside [0, 1]"
        return None


def _share_below(ordered: Tensor) -> Tensor:
    """Share of the rows that stand before a row, half of its ties counted, (N,) in (0, 1)."""
    _, group, size = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    middle = (torch.cumsum(size, 0) - size).double() + size.double() / 2
    share: Tensor = middle[group] / len(ordered)
    return share
