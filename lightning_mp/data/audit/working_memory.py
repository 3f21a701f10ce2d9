"""WorkingMemory: arrays that blocks of numbers are worked on in, one after the other."""

from __future__ import annotations

from typing import Final

import numpy as np

ROWS: Final = 1 << 15
"""Numbers a block: what is derived from them then stays in a processor's own cache, from one step to the next."""


class WorkingMemory:
    """Arrays for one block of numbers, used again for the next: fresh ones cost more than the arithmetic on them.

    One thread uses it at a time.

    Attributes:
        single: (ROWS,) float32.
        size: (ROWS,) float32.
        power: (ROWS,) float32.
        cast: (ROWS,) float32.
        double: (ROWS,) float64.
        given: (ROWS,) float64.
        index: (ROWS,) int64, in the memory of `double`.
        hashes: (ROWS,) uint64, in the memory of `double`.
    """

    def __init__(self) -> None:
        self.single, self.size, self.power, self.cast = (np.empty(ROWS, dtype=np.float32) for _ in range(4))
        self.double, self.given = np.empty(ROWS), np.empty(ROWS)
        self.index = self.double.view(np.int64)
        self.hashes = self.double.view(np.uint64)
