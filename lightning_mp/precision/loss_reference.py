"""A robust running reference of a loss, and how far a new value is from it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

_LEAST = 1e-6  # a loss below it is rounding; its ratios tell nothing


class LossReference:
    """Median of the last finite values of a loss.

    A change is taken relative to the median size of the window's values, so a loss with two signs that swings around
    zero is compared with its swing, and no loss with less than 1e-6.

    Args:
        window: Values that are kept.
        values: Values of before, of a run that is resumed.

    Example:
        >>> reference = LossReference(5, [1.0, 1.1, 9.0, 1.0, 0.9])
        >>> reference.median, round(reference.change(1.5), 3)
        (1.0, 0.5)
    """

    def __init__(self, window: int, values: Iterable[float] = ()) -> None:
        self._values = deque(values, maxlen=window)

    @property
    def values(self) -> list[float]:
        """The values kept, the oldest first."""
        return list(self._values)

    @property
    def median(self) -> float | None:
        """The reference; None before the first value."""
        return median(self._values) if self._values else None

    def change(self, value: float) -> float | None:
        """How far a value is from the reference, relative, with its sign.

        Args:
            value: The new loss.

        Returns:
            None before the first value, and where `value` is not finite.
        """
        if not self._values or not math.isfinite(value):
            return None
        size = max(median(map(abs, self._values)), _LEAST)
        return (value - median(self._values)) / size

    def add(self, value: float) -> None:
        """Keep a value; one that is not finite is passed over.

        Args:
            value: The new loss.
        """
        if math.isfinite(value):
            self._values.append(value)
