"""Predicted over observed rate: whether a model promises too much or too little."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lightning_mp.errors import ConfigurationError


class CalibrationRatio(Metric):
    """Mean predicted probability over mean target: 1 is right on average, 2 promises twice what happens.

    Both means are sums in float64, which depend on the cut into batches by less than 1e-12 of themselves.

    `update(scores, targets)` takes scores (B,) of any floating dtype and targets (B,) in [0, 1]. `compute()` gives a
    float32 scalar, NaN where it is undefined.

    Args:
        from_logits: Whether `update` is given logits, or else probabilities in [0, 1].

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, scores that are not finite or no probabilities, targets
            outside [0, 1], or targets that are all 0, so that there is nothing to divide by; `None` where it gave a
            number.

    Raises:
        ConfigurationError: `update` got scores and targets of different shapes.

    Example:
        >>> metric = CalibrationRatio(from_logits=False)
        >>> metric.update(torch.tensor([0.3, 0.1, 0.2, 0.2]), torch.tensor([1, 0, 0, 0]))
        >>> metric.compute()
        tensor(0.8000)

    Source:
        He et al., Practical lessons from predicting clicks on ads at Facebook, ADKDD 2014, section 3 (calibration).
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    predicted: Tensor
    observed: Tensor
    rows: Tensor
    bad_scores: Tensor
    bad_targets: Tensor

    def __init__(self, *, from_logits: bool = True) -> None:
        super().__init__()
        self.from_logits = from_logits
        for total in ("predicted", "observed"):
            self.add_state(total, default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for count in ("rows", "bad_scores", "bad_targets"):
            self.add_state(count, default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.reason: str | None = None

    @override
    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores (B,), targets (B,)."""
        if scores.shape != targets.shape:
            raise ConfigurationError(
                f"CalibrationRatio got scores of shape {tuple(scores.shape)} and targets of shape "
                f"{tuple(targets.shape)}",
                "give one target a score",
            )
        scores, targets = scores.detach().flatten().double(), targets.detach().flatten().double()
        usable = scores.isfinite() if self.from_logits else (scores >= 0) & (scores <= 1)
        known = (targets >= 0) & (targets <= 1)
        chance = torch.sigmoid(scores) if self.from_logits else scores
        # A module moved to half precision takes its metrics' states along; the sums are made wide again here.
        self.predicted = self.predicted.double() + chance[usable & known].sum()
        self.observed = self.observed.double() + targets[usable & known].sum()
        self.rows = self.rows + scores.numel()
        self.bad_scores = self.bad_scores + (~usable).sum()
        self.bad_targets = self.bad_targets + (~known).sum()

    @override
    def compute(self) -> Tensor:
        """The ratio, a float32 scalar; NaN, with `reason`, where it is undefined."""
        rows, scores, targets = int(self.rows), int(self.bad_scores), int(self.bad_targets)
        self.reason = None
        if not rows:
            self.reason = "there are no rows"
        elif scores:
            kind = "logits are not finite" if self.from_logits else "probabilities are outside [0, 1]"
            self.reason = f"{scores:,} of {rows:,} {kind}"
        elif targets:
            self.reason = f"{targets:,} of {rows:,} targets are outside [0, 1]"
        elif not self.observed > 0:
            self.reason = f"all {rows:,} targets are 0"
        if self.reason is not None:
            return torch.tensor(float("nan"), device=self.predicted.device)
        return (self.predicted / self.observed).float()

    @override
    def reset(self) -> None:
        super().reset()
        self.reason = None
