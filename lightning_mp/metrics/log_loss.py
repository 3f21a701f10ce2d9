"""Mean cross-entropy of clicks that says "undefined" rather than a number that lies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torchmetrics import Metric
from typing_extensions import override

from lightning_mp.errors import ConfigurationError


class LogLoss(Metric):
    """Mean binary cross-entropy in nats, from logits or from probabilities.

    From logits it is exact however large they are: no probability is formed, so nothing is clipped. From
    probabilities a row that was called impossible and happened costs infinity, and infinity is what it gives.
    Rows are widened to float64 and added in it: the value depends on the cut into batches by less than 1e-12
    of itself.

    `update(scores, targets)` takes scores (B,) of any floating dtype and targets (B,) in [0, 1], a share where a row
    stands for several. `compute()` gives a float32 scalar, NaN where it is undefined. Targets of one class are no
    obstacle here.

    Args:
        from_logits: Whether `update` is given logits, or else probabilities in [0, 1].

    Attributes:
        reason: Why the last `compute()` gave NaN: no rows, scores that are not finite or no probabilities, or
            targets outside [0, 1]; `None` where it gave a number.

    Raises:
        ConfigurationError: `update` got scores and targets of different shapes.

    Example:
        >>> metric = LogLoss()
        >>> metric.update(torch.tensor([0.0, 100.0], dtype=torch.float16), torch.tensor([1.0, 0.0]))
        >>> metric.compute()
        tensor(50.3466)
        >>> metric.update(torch.tensor([float("nan")]), torch.tensor([1.0]))
        >>> metric.compute(), metric.reason
        (tensor(nan), '1 of 3 logits are not finite')

    Source:
        Good, Rational decisions, Journal of the Royal Statistical Society B 14, 1952.
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    total: Tensor
    rows: Tensor
    bad_scores: Tensor
    bad_targets: Tensor

    def __init__(self, *, from_logits: bool = True) -> None:
        super().__init__()
        self.from_logits = from_logits
        self.add_state("total", default=torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for count in ("rows", "bad_scores", "bad_targets"):
            self.add_state(count, default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.reason: str | None = None

    @override
    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Add a batch: scores (B,), targets (B,)."""
        if scores.shape != targets.shape:
            raise ConfigurationError(
                f"LogLoss got scores of shape {tuple(scores.shape)} and targets of shape {tuple(targets.shape)}",
                "give one target a score",
            )
        scores, targets = scores.detach().flatten().double(), targets.detach().flatten().double()
        usable = scores.isfinite() if self.from_logits else (scores >= 0) & (scores <= 1)
        known = (targets >= 0) & (targets <= 1)
        if self.from_logits:
            loss = targets * softplus(-scores) + (1 - targets) * softplus(scores)
        else:
            loss = -(torch.xlogy(targets, scores) + torch.special.xlog1py(1 - targets, -scores))
        # A module moved to half precision takes its metrics' states along; the sum is made wide again here.
        self.total = self.total.double() + loss[usable & known].sum()
        self.rows = self.rows + scores.numel()
        self.bad_scores = self.bad_scores + (~usable).sum()
        self.bad_targets = self.bad_targets + (~known).sum()

    @override
    def compute(self) -> Tensor:
        """The mean, a float32 scalar; NaN, with `reason`, where it is undefined."""
        rows, scores, targets = int(self.rows), int(self.bad_scores), int(self.bad_targets)
        self.reason = None
        if not rows:
            self.reason = "there are no rows"
        elif scores:
            kind = "logits are not finite" if self.from_logits else "probabilities are outside [0, 1]"
            self.reason = f"{scores:,} of {rows:,} {kind}"
        elif targets:
            self.reason = f"{targets:,} of {rows:,} targets are outside [0, 1]"
        if self.reason is not None:
            return torch.tensor(float("nan"), device=self.total.device)
        return (self.total / rows).float()

    @override
    def reset(self) -> None:
        super().reset()
        self.reason = None
