"""WorkingMemory: arrays that blocks of numbers are worked on in, one after the other."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

ROWS: Final = 1 << 16
"""Numbers a block: what is derived from them then stays in a processor's own cache, from one step to the next."""


class WorkingMemory:
    """Arrays for one block of numbers, used again for the next: fresh ones cost more than the arithmetic on them.

    One thread uses it at a time.

    Attributes:
        single: (ROWS,) float32: what `float32` gives.
        size: (ROWS,) float32.
        power: (ROWS,) float32.
        cast: (ROWS,) float32.
        double: (ROWS,) float64.
        given: (ROWS,) float64.
        index: (ROWS,) int64, in the memory of `double`.
        hashes: (ROWS,) uint32, in the memory of `cast`.
        shifted: (ROWS,) uint32, in the memory of `power`.
    """

    def __init__(self) -> None:
        self.single, self.size, self.power, self.cast = (np.empty(ROWS, dtype=np.float32) for _ in range(4))
        self.double, self.given = np.empty(ROWS), np.empty(ROWS)
        self.index = self.double.view(np.int64)
        self.hashes, self.shifted = self.cast.view(np.uint32), self.power.view(np.uint32)

    def float32(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Numbers as float32, without gaps in memory: themselves where they are that, or else in `single`.

        Args:
            values: (N,) at most ROWS of them.
        """
        if values.dtype == np.float32:
            return np.ascontiguousarray(values)
        single = self.single[: len(values)]
        np.copyto(single, values, casting="same_kind")
        return single
