"""What float16 does to a column that is read a block at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.stored_precision import Float16Loss, float16_loss


@dataclass(slots=True)
class Float16Tally:
    """What float16 does to a column, added up over its blocks.

    Args:
        overflowed: Numbers beyond float16.
        flushed: Numbers that are not zero and become zero.
        error: Sum of the relative errors of the others.
        counted: How many of them are not zero.

    Example:
        >>> tally = Float16Tally()
        >>> tally.add(np.array([[1.0], [0.5]], dtype=np.float32))
        >>> tally.loss.survives
        True
    """

    overflowed: int = 0
    flushed: int = 0
    error: float = 0.0
    counted: int = 0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the numbers of one block; NaN and infinity stay what they are in float16 and do not count."""
        wide = values[np.isfinite(values)].astype(np.float64)
        loss = float16_loss(wide)
        counted = int(np.count_nonzero(wide)) - loss.overflowed
        self.overflowed += loss.overflowed
        self.flushed += loss.flushed
        self.error += loss.mean_relative_error * counted
        self.counted += counted

    @property
    def loss(self) -> Float16Loss:
        """The verdict over all blocks."""
        mean = self.error / self.counted if self.counted else 0.0
        return Float16Loss(overflowed=self.overflowed, flushed=self.flushed, mean_relative_error=mean)
