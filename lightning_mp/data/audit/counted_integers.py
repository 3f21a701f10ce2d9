"""Integers that lie close together, each once with its count: a column of flags or counts is but a few numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import Counts
from lightning_mp.data.audit.working_memory import ROWS, WorkingMemory

_SPAN: Final = 1 << 16
_FEW: Final = 8
"""So many numbers are counted one after the other: each takes a tenth of the time that a table of counts does."""
_HEAD: Final = 64


def counted_integers(numbers: npt.NDArray[Any], memory: WorkingMemory) -> tuple[npt.NDArray[Any], Counts] | None:
    """The different integers among numbers, and how often each occurs.

    Args:
        numbers: (N,) float32, float64 or int64, at least one.
        memory: To work in; its `cast`, `given` and `index` are overwritten.

    Returns:
        (K,) rising, of the type of `numbers`, zero without a sign; and (K,) counts. `None` where a number is no integer
        or not finite, or where they are spread over more than 65,536.
    """
    if numbers.dtype.kind == "f":
        head = numbers[:_HEAD]
        if not (np.floor(head) == head).all():  # most columns tell it at once
            return None
    low, high = numbers.min().item(), numbers.max().item()
    if not high - low < _SPAN:  # NaN is not below it either
        return None
    span = int(high - low) + 1
    counts = _one_by_one(numbers, low, span) if span <= _FEW else None
    counts = _by_table(numbers, low, span, memory) if counts is None else counts
    if counts is None or int(counts.sum()) != len(numbers):
        return None
    offsets = np.flatnonzero(counts)
    return (offsets + (low + 0)).astype(numbers.dtype), counts[offsets]


def _one_by_one(numbers: npt.NDArray[Any], low: float, span: int) -> Counts | None:
    wanted = (np.arange(span) + low).astype(numbers.dtype)
    if not (np.diff(wanted) == 1).all():  # beyond 2^24 float32 does not hold every integer
        return None
    return np.array([np.count_nonzero(numbers == number) for number in wanted], dtype=np.int64)


def _by_table(numbers: npt.NDArray[Any], low: float, span: int, memory: WorkingMemory) -> Counts | None:
    counts = np.zeros(span, dtype=np.int64)
    floating = numbers.dtype.kind == "f"
    work: npt.NDArray[Any] = memory.cast if numbers.dtype == np.float32 else memory.given
    first = numbers.dtype.type(low)
    for start in range(0, len(numbers), ROWS):
        block = numbers[start : start + ROWS]
        index = memory.index[: len(block)]
        if floating:
            # Integers of float32 that are less than 2^16 apart differ by a number that it holds.
            here = work[: len(block)]
            if not np.equal(np.floor(block, out=here), block).all():
                return None
            np.subtract(block, first, out=here)
            np.copyto(index, here, casting="unsafe")
        else:
            np.subtract(block, first, out=index)
        np.add.at(counts, index, 1)
    return counts
