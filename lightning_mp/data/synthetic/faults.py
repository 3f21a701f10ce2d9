"""Faults that a synthetic log is recorded with, on request."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPEND_RANGE = (0.01, 2e7)
"""Smallest and largest spend of a log whose spend explodes."""
BURST = 1e6
"""Largest promotion of a log with bursts."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What a synthetic log records wrongly, each fault on its own switch.

    A fault changes how a value is written down, never what happened: the same seed gives the same impressions,
    clicks and true probabilities with and without it. The first three can be undone, so that a cure can be judged.

    Args:
        negative_ages: One user in five has an age below zero: its sign was lost.
        exploding_spend: `spend` reaches from 0.01 to 20,000,000, stretched on its logarithm.
        sparse_bursts: `promotion`, zero on 95 % of the rows, jumps to up to 1,000,000 on the others.
        future_leaks: Two columns more: `user_click_rate`, over the whole log, the row itself and what comes
            after it included, and `page_depth`, the click in disguise.

    Source:
        The three fatal kinds of bad data of an e-commerce ranking project (impossible values, scale explosion,
        sparse bursts), and its leak.
    """

    negative_ages: bool = False
    exploding_spend: bool = False
    sparse_bursts: bool = False
    future_leaks: bool = False

    def record_age(self, age: NDArray[np.int64], lost_sign: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Ages in years as they stand in the log."""
        return np.where(lost_sign, -age, age) if self.negative_ages else age

    def record_spend(self, spend: NDArray[np.float64], smallest: float, largest: float) -> NDArray[np.float64]:
        """Spend as it stands in the log; `smallest` and `largest` are taken over all users."""
        if not self.exploding_spend:
            return spend
        low, high = SPEND_RANGE
        span = np.log(max(largest / smallest, 1 + 1e-9))  # one user alone has no span
        stretched = low * np.exp(np.log(spend / smallest) * (np.log(high / low) / span))
        return np.asarray(np.clip(stretched, low, high))

    def record_promotion(self, strength: NDArray[np.float64]) -> NDArray[np.float64]:
        """Promotion, in [0, 1] when it is sound, as it stands in the log."""
        if not self.sparse_bursts:
            return strength
        return np.where(strength > 0, BURST**strength, 0.0)

    def read_promotion(self, recorded: NDArray[np.float64]) -> NDArray[np.float64]:
        """Inverse of `record_promotion`."""
        if not self.sparse_bursts:
            return recorded
        return np.where(recorded > 0, np.log(np.maximum(recorded, 1.0)) / np.log(BURST), 0.0)
