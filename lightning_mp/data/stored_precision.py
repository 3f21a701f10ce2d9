"""Which float a dense column is stored in: float16 where it loses next to nothing, else float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.float_formats import FLOAT16

LARGEST_MEAN_ERROR: Final = FLOAT16.relative_step
"""2^-10, one step of float16: twice the worst rounding error of a number in its normal range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Loss:
    """What a column loses when it is cast to float16, measured over all its rows.

    Args:
        overflowed: Rows that become infinite.
        flushed: Rows that are not zero and become zero.
        mean_relative_error: Mean of abs(cast - value) / abs(value) over the rows that are not zero and stay finite.
    """

    overflowed: int
    flushed: int
    mean_relative_error: float

    @property
    def survives(self) -> bool:
        """Whether the column may be stored as float16: nothing overflows or is flushed, the mean error is small.

        The mean and not the worst row decides: a centred column always has a few values near zero, which float16
        keeps with few digits and which carry nothing; a column whose every value is tiny fails by its mean.
        """
        return not self.overflowed and not self.flushed and self.mean_relative_error <= LARGEST_MEAN_ERROR

    def __str__(self) -> str:
        faults = [
            f"{self.overflowed:,} rows would overflow" if self.overflowed else "",
            f"{self.flushed:,} rows would become zero" if self.flushed else "",
            f"mean relative error {self.mean_relative_error:.2g}",
        ]
        return ", ".join(fault for fault in faults if fault)


def float16_loss(values: npt.NDArray[np.float64]) -> Float16Loss:
    """Measure what float16 does to a column, on the way it is stored: float64, float32, float16.

    Args:
        values: (N,) finite numbers.

    Example:
        >>> float16_loss(np.array([1.0, 0.5])).survives, float16_loss(np.array([1e-6, 3e-7])).survives
        (True, False)
        >>> print(float16_loss(np.array([70000.0, 1e-9, 1.0])))
        1 rows would overflow, 1 rows would become zero, mean relative error 0.5
    """
    errors, known, overflowed, flushed = scratch_array(values.size, np.float64), 0, 0, 0
    for piece in row_pieces(len(values)):
        given = values[piece]
        with np.errstate(over="ignore", under="ignore"):
            cast = given.astype(np.float32).astype(np.float16).astype(np.float64)
        finite = np.isfinite(cast)
        counted = finite & (given != 0)
        error = np.abs(cast[counted] - given[counted]) / np.abs(given[counted])
        errors[known : known + len(error)] = error
        known += len(error)
        overflowed += int(np.count_nonzero(~finite))
        flushed += int(np.count_nonzero(counted & (cast == 0)))
    return Float16Loss(
        overflowed=overflowed,
        flushed=flushed,
        mean_relative_error=float(errors[:known].mean()) if known else 0.0,
    )
