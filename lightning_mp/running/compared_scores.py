"""AUC and log loss of the same rows scored twice, and how much the second scoring loses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.data.rank_auc import rank_auc
from lightning_mp.metrics.auc_difference import auc_difference
from lightning_mp.metrics.paired_bootstrap import Difference, paired_bootstrap

MARGIN: Final = 0.01
"""Relative loss of a metric that is put up with: 1 % of the float32 run's."""
_SMALLEST: Final = 1e-7  # of a probability in the log loss: a float32 sigmoid gives no smaller distance from 1
Floats = NDArray[np.float64]
Verdict = Literal["holds", "undecided", "fails"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric in both precisions.

    Args:
        metric: `auc`, which is better when larger, or `log_loss`, when smaller.
        mixed: In the run's precision.
        float32: In float32.
        difference: Of mixed less float32, with its interval.
    """

    metric: Literal["auc", "log_loss"]
    mixed: float
    float32: float
    difference: Difference

    @property
    def worst(self) -> float:
        """Relative loss at the worse end of the interval; below 0 where even that is a gain."""
        return (self.difference.high if self.metric == "log_loss" else -self.difference.low) / self._scale

    @property
    def best(self) -> float:
        """Relative loss at the better end of the interval."""
        return (self.difference.low if self.metric == "log_loss" else -self.difference.high) / self._scale

    @property
    def verdict(self) -> Verdict:
        """Whether a loss of more than 1 % is ruled out, possible, or certain."""
        return "holds" if self.worst <= MARGIN else "fails" if self.best > MARGIN else "undecided"

    @property
    def _scale(self) -> float:
        return abs(self.float32) or 1.0


def compare_scores(
    mixed: ArrayLike, float32: ArrayLike, labels: ArrayLike, *, users: ArrayLike | None = None, level: float = 0.95
) -> tuple[Compared, ...]:
    """AUC and log loss of two sets of scores for the same rows, with paired intervals over the users.

    Args:
        mixed: (N,) probabilities in the run's precision.
        float32: (N,) in float32.
        labels: (N,) in [0, 1]; in the AUC a row above 0 is positive.
        users: (N,) the user of each row; each row stands alone when left out.
        level: Share of such intervals that hold the true difference.

    Raises:
        DataError: A score is not finite, or all labels are of one class.
    """
    ours, theirs, target = (np.asarray(column, dtype=np.float64) for column in (mixed, float32, labels))
    area = auc_difference(ours, theirs, target, groups=users, level=level)
    areas = [rank_auc(target > 0, scores) or 0.0 for scores in (ours, theirs)]
    losses = [_losses(scores, target) for scores in (ours, theirs)]
    place = np.arange(len(target)) if users is None else np.unique(np.asarray(users), return_inverse=True)[1]
    rows = np.bincount(place)
    means = [np.bincount(place, weights=loss) / rows for loss in losses]
    loss = paired_bootstrap(means[0], means[1], weights=rows, level=level)
    return (
        Compared(metric="auc", mixed=areas[0], float32=areas[1], difference=area),
        Compared(metric="log_loss", mixed=losses[0].mean(), float32=losses[1].mean(), difference=loss),
    )


def _losses(scores: Floats, target: Floats) -> Floats:
    sure = np.clip(scores, _SMALLEST, 1 - _SMALLEST)
    losses: Floats = -(target * np.log(sure) + (1 - target) * np.log1p(-sure))
    return losses
