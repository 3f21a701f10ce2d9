"""The sum of squares in one pass over memory."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_LENGTH: Final = 8192
"""Of a dot product: from 10,000 on a BLAS would start threads of its own."""


def sum_of_squares(numbers: npt.NDArray[np.float64]) -> float:
    """The sum of squares in float64; infinite where it is beyond it.

    Args:
        numbers: (N,) without gaps in memory.

    Example:
        >>> sum_of_squares(np.array([3.0, 4.0]))
        25.0
    """
    even = len(numbers) - len(numbers) % _LENGTH
    rows, rest = numbers[:even].reshape(-1, _LENGTH), numbers[even:]
    return float(np.matmul(rows[:, None, :], rows[:, :, None]).sum() + np.dot(rest, rest))
