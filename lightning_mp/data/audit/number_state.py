"""NumberState: all that one pass over a column of numbers keeps, whatever its length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import BINS, Counts
from lightning_mp.data.audit.distinct_sketch import DistinctSketch, hashes_of
from lightning_mp.data.audit.format_loss import FormatLoss
from lightning_mp.data.audit.pooled_moments import pooled
from lightning_mp.data.audit.rounding import FORMATS, top_halves
from lightning_mp.data.audit.working_memory import ROWS, WorkingMemory

Mask = npt.NDArray[np.bool_]
Marks = npt.NDArray[np.int8]


class NumberState:
    """What one pass over a column keeps: about 1 MB, whatever the rows. States of parts are merged by addition.

    Counts do not depend on how the rows were split or ordered, moments but for rounding (1e-9).

    Attributes:
        rows: Rows seen, missing ones included.
        nulls: Missing ones.
        nans: NaN.
        infinities: Positive and negative ones.
        zeros: Zeros of both signs.
        negatives: Below zero.
        count: Finite ones.
        mean: Of the finite ones, float64.
        squares: Sum of squared distances from the mean.
        low: Smallest finite one, with the rows that hold it in `low_rows`.
        high: Largest finite one, with `high_rows`.
        smallest: Smallest magnitude other than zero.
        whole: Whether every finite one is an integer.
        bits: The bits that any number sets in its float32 pattern.
        beyond_float32: Finite ones that float32 makes infinite.
        histogram: (65536,) over the upper half of the float32 pattern.
        positives: The same over rows with the label; `None` without one.
        parts: (2, 65536) the same over the first and the last part; `None` without time.
        part_rows: (2, 2) rows and missing ones of both parts.
        losses: By format, what its cast does.
        distinct: Different values.
    """

    def __init__(self, *, label: bool = False, parts: bool = False) -> None:
        self.rows = self.nulls = self.nans = self.infinities = self.zeros = self.negatives = self.count = 0
        self.mean = self.squares = 0.0
        self.low, self.high, self.smallest = np.inf, -np.inf, np.inf
        self.low_rows = self.high_rows = 0
        self.whole, self.bits, self.beyond_float32 = True, 0, 0
        self.histogram: Counts = np.zeros(BINS, dtype=np.int64)
        self.positives: Counts | None = np.zeros(BINS, dtype=np.int64) if label else None
        self.labelled: Counts | None = np.zeros(BINS, dtype=np.int64) if label else None
        self.parts: Counts | None = np.zeros((2, BINS), dtype=np.int64) if parts else None
        self.part_rows: Counts = np.zeros((2, 2), dtype=np.int64)
        self.losses = {number_format.name: FormatLoss(number_format) for number_format in FORMATS}
        self.distinct = DistinctSketch()

    def update(
        self,
        values: npt.NDArray[Any],
        valid: Mask | None = None,
        *,
        label: Marks | None = None,
        part: Marks | None = None,
        memory: WorkingMemory | None = None,
    ) -> None:
        """Take in a piece of the column.

        Args:
            values: (V,) float32, float64 or int64, without the missing ones.
            valid: (N,) which rows are not missing; `None` where all are there.
            label: (N,) 1 with the label, 0 without, -1 where it is missing.
            part: (N,) 0 in the first part, 1 in the last, -1 between.
            memory: To work in, not used by another thread; `None` for a fresh one.
        """
        rows = len(values) if valid is None else len(valid)
        self.rows, self.nulls = self.rows + rows, self.nulls + rows - len(values)
        if part is not None:
            self._count_parts(part, valid)
        if valid is not None:
            label, part = _marks(label, valid), _marks(part, valid)
        memory = memory or WorkingMemory()
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(0, len(values), ROWS):
                here = slice(start, start + ROWS)
                block = np.ascontiguousarray(values[here])
                self._take(block, _marks(label, here), _marks(part, here), memory)

    def _take(self, values: npt.NDArray[Any], label: Marks | None, part: Marks | None, memory: WorkingMemory) -> None:
        single = values
        if values.dtype != np.float32:
            single = memory.single[: len(values)]
            np.copyto(single, values, casting="same_kind")
        index = memory.index[: len(values)]
        np.copyto(index, top_halves(single))
        np.add.at(self.histogram, index, 1)
        self._split(index, label, part)
        size = memory.size[: len(values)]
        np.abs(single, out=size)
        finite = values
        if not size.max() < np.inf:  # NaN is not below it either
            kept = np.isfinite(values)
            nans = int(np.count_nonzero(np.isnan(values)))
            finite, single, size = values[kept], single[kept], size[kept]
            self.nans += nans
            self.infinities += len(values) - nans - len(finite)
            self.beyond_float32 += int(np.count_nonzero(np.isinf(single)))
            if not len(finite):
                return
        self._moments(finite, memory.double[: len(finite)])
        self._extremes(finite)
        self.bits |= int(np.bitwise_or.reduce(single.view(np.uint32)))
        integers = self._integers(finite, single, memory)
        self._cast(finite, size, integers, memory)

    def _integers(
        self, finite: npt.NDArray[Any], single: npt.NDArray[np.float32], memory: WorkingMemory
    ) -> npt.NDArray[np.float32] | None:
        """Count different numbers; those of a column of integers are returned, most of them once."""
        if self.whole and finite.dtype.kind == "f":
            floors = (memory.cast if finite.dtype == np.float32 else memory.double)[: len(finite)]
            self.whole = bool((np.floor(finite, out=floors) == finite).all())
        if not self.whole:
            self.distinct.update(hashes_of(finite))
            return None
        integers = _different(single)
        exact = finite.dtype == np.float32 or max(abs(integers.min()), abs(integers.max())) <= 1 << 24
        self.distinct.update(hashes_of(integers.astype(finite.dtype) if exact else finite))
        return integers

    def _cast(
        self, finite: npt.NDArray[Any], size: npt.NDArray[np.float32], integers: npt.NDArray[np.float32] | None,
        memory: WorkingMemory,
    ) -> None:  # fmt: skip
        if integers is not None:
            for loss in self.losses.values():
                loss.see(integers)
        if not size.min():
            there = finite != 0
            zeros = len(finite) - int(np.count_nonzero(there))
            self.zeros += zeros
            for loss in self.losses.values():
                loss.take_zeros(zeros)
            if zeros:
                finite, size = finite[there], size[there]
        if not len(finite):
            return
        given: npt.NDArray[Any] = size
        if finite.dtype != np.float32:
            given = memory.given[: len(finite)]
            np.copyto(given, finite)
            np.abs(given, out=given)
        self.smallest = min(self.smallest, float(given.min()))
        for loss in self.losses.values():
            loss.update(size, given, memory)

    def _moments(self, finite: npt.NDArray[Any], doubles: npt.NDArray[np.float64]) -> None:
        np.copyto(doubles, finite)
        count = len(doubles)
        mean = float(doubles.sum() / count)
        np.subtract(doubles, mean, out=doubles)
        np.square(doubles, out=doubles)
        squares = float(doubles.sum())  # pairwise; a BLAS would start threads of its own
        self.count, self.mean, self.squares = pooled((self.count, self.mean, self.squares), (count, mean, squares))

    def _extremes(self, finite: npt.NDArray[Any]) -> None:
        low, high = finite.min(), finite.max()
        if low < 0:
            self.negatives += int(np.count_nonzero(finite < 0))
        if low <= self.low:
            self.low, self.low_rows = _extreme(
                (self.low, self.low_rows), (low.item(), int(np.count_nonzero(finite == low)))
            )
        if high >= self.high:
            self.high, self.high_rows = _extreme(
                (self.high, self.high_rows), (high.item(), int(np.count_nonzero(finite == high)))
            )

    def _count_parts(self, part: npt.NDArray[np.int8], valid: Mask | None) -> None:
        for index in (0, 1):
            inside = part == index
            rows = int(np.count_nonzero(inside))
            there = rows if valid is None else int(np.count_nonzero(inside & valid))
            self.part_rows[index] += (rows, rows - there)

    def _split(self, tops: npt.NDArray[np.int64], label: Marks | None, part: Marks | None) -> None:
        if label is not None and self.positives is not None and self.labelled is not None:
            np.add.at(self.positives, tops[label == 1], 1)
            np.add.at(self.labelled, tops[label >= 0] if (label < 0).any() else tops, 1)
        if part is not None and self.parts is not None:
            for index in (0, 1):
                np.add.at(self.parts[index], tops[part == index], 1)

    def merge(self, other: NumberState) -> None:
        """Take in the state of another piece of the same column."""
        for name in ("rows", "nulls", "nans", "infinities", "zeros", "negatives", "beyond_float32"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.count, self.mean, self.squares = pooled(
            (self.count, self.mean, self.squares), (other.count, other.mean, other.squares)
        )
        if other.low <= self.low:
            self.low, self.low_rows = _extreme((self.low, self.low_rows), (other.low, other.low_rows))
        if other.high >= self.high:
            self.high, self.high_rows = _extreme((self.high, self.high_rows), (other.high, other.high_rows))
        self.smallest = min(self.smallest, other.smallest)
        self.whole, self.bits = self.whole and other.whole, self.bits | other.bits
        self.histogram += other.histogram
        for name in ("positives", "labelled", "parts"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and theirs is not None:
                mine += theirs
        self.part_rows += other.part_rows
        for name, loss in self.losses.items():
            loss.merge(other.losses[name])
        self.distinct.merge(other.distinct)


def _different(integers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The integers that occur, rising, each once where they lie close together."""
    low, high = float(integers.min()), float(integers.max())
    if not high - low < 1 << 16:  # also where float32 holds infinity alone
        return integers
    counts = np.bincount((integers - np.float32(low)).astype(np.intp))
    return (np.flatnonzero(counts) + low).astype(np.float32)


def _marks(marks: Marks | None, rows: Mask | slice) -> Marks | None:
    return None if marks is None else marks[rows]


def _extreme(held: tuple[float, int], met: tuple[float, int]) -> tuple[float, int]:
    return (held[0], held[1] + met[1]) if held[0] == met[0] else met
