"""NumberState: all that one pass over a column of numbers keeps, whatever its length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import BINS, Counts
from lightning_mp.data.audit.counted_integers import counted_integers
from lightning_mp.data.audit.distinct_sketch import DistinctSketch, hashes_of
from lightning_mp.data.audit.format_loss import FormatLoss
from lightning_mp.data.audit.pooled_moments import pooled
from lightning_mp.data.audit.rounding import FORMATS, top_halves
from lightning_mp.data.audit.sum_of_squares import sum_of_squares
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
        self, values: npt.NDArray[Any], valid: Mask | None = None, *, label: Marks | None = None,
        part: Marks | None = None, memory: WorkingMemory | None = None,
    ) -> None:  # fmt: skip
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
            counted = counted_integers(values, memory) if len(values) else None
            if counted is not None:
                self._take_counted(*counted)
            for start in range(0, len(values), ROWS):
                here = slice(start, start + ROWS)
                if counted is None:
                    self._take(values[here], memory)
                if label is not None or part is not None:
                    self._split(memory.float32(values[here]), _marks(label, here), _marks(part, here))

    def _take(self, values: npt.NDArray[Any], memory: WorkingMemory) -> None:
        single = memory.float32(values)
        size = np.abs(single, out=memory.size[: len(values)])
        largest = float(size.max())
        finite = values
        if not largest < np.inf:  # NaN is not below it either
            kept = np.isfinite(values)
            self.nans += (nans := int(np.count_nonzero(np.isnan(values))))
            finite = values[kept]
            self.infinities += len(values) - nans - len(finite)
            if not len(finite):
                return
            counted = counted_integers(finite, memory)
            if counted is not None:
                self._take_counted(*counted)
                return
            single, size = memory.float32(finite), size[kept]
            self.beyond_float32 += int(np.count_nonzero(np.isinf(single)))
            largest = float(size.max())
        smallest = float(size.min())
        if not smallest:
            there = finite != 0
            zeros = len(finite) - int(np.count_nonzero(there))
            if zeros:
                self._take_zeros(zeros, finite.dtype)
                there = np.flatnonzero(there)  # thrice as fast as a mask of bits that follow no order
                finite, size = finite.take(there), size.take(there)
                if not len(finite):
                    return
                single, smallest = memory.float32(finite), float(size.min())
        self._moments(finite, memory.double[: len(finite)])
        self._extremes(finite)
        np.add.at(self.histogram, top_halves(single, memory.index[: len(finite)]), 1)
        self.bits |= int(np.bitwise_or.reduce(single.view(np.uint32)))
        self._different(finite, single, memory)
        given: npt.NDArray[Any] = size
        if finite.dtype != np.float32:
            given = memory.given[: len(finite)]
            np.copyto(given, finite)
            np.abs(given, out=given)
        self.smallest = min(self.smallest, smallest if given is size else float(given.min()))
        for loss in self.losses.values():
            loss.update(size, given, memory, smallest=smallest, largest=largest)

    def _take_zeros(self, zeros: int, kind: np.dtype[Any]) -> None:
        if not self.zeros:
            self.distinct.update(hashes_of(np.zeros(1, dtype=kind)))
        self.zeros += zeros
        self.histogram[0] += zeros
        self._pool(zeros, 0.0, 0.0)
        self._note_ends((kind.type(0).item(), zeros), (kind.type(0).item(), zeros))
        for loss in self.losses.values():
            loss.take_zeros(zeros)

    def _different(self, finite: npt.NDArray[Any], single: npt.NDArray[np.float32], memory: WorkingMemory) -> None:
        if self.whole and finite.dtype.kind == "f":
            floors = (memory.cast if finite.dtype == np.float32 else memory.given)[: len(finite)]
            self.whole = bool((np.floor(finite, out=floors) == finite).all())
        self.distinct.update(hashes_of(finite, memory))
        if self.whole:
            for loss in self.losses.values():
                loss.see(single)

    def _take_counted(self, integers: npt.NDArray[Any], counts: Counts) -> None:
        """Take in integers, each once with its rows."""
        single, doubles = integers.astype(np.float32), integers.astype(np.float64)
        self.bits |= int(np.bitwise_or.reduce(single.view(np.uint32)))
        rows, above = int(counts.sum()), doubles - doubles[0]
        mean = float((above * counts).sum() / rows)
        self._pool(rows, float(doubles[0]) + mean, float(((above - mean) ** 2 * counts).sum()))
        self._note_ends((integers[0].item(), int(counts[0])), (integers[-1].item(), int(counts[-1])))
        self.negatives += int(counts[integers < 0].sum())
        np.add.at(self.histogram, single.view(np.uint32) >> np.uint32(16), counts)
        self.beyond_float32 += int(counts[np.isinf(single)].sum())
        self.distinct.update(hashes_of(integers))
        there = integers != 0
        size, zeros = np.abs(doubles[there]), int(counts[~there].sum())
        self.zeros += zeros
        if len(size):
            self.smallest = min(self.smallest, float(size.min()))
        for loss in self.losses.values():
            if self.whole:
                loss.see(single)
            loss.take_zeros(zeros)
            if len(size):
                loss.update_counted(size, counts[there])

    def _pool(self, count: int, mean: float, squares: float) -> None:
        self.count, self.mean, self.squares = pooled((self.count, self.mean, self.squares), (count, mean, squares))

    def _note_ends(self, low: tuple[float, int], high: tuple[float, int]) -> None:
        if low[0] <= self.low:
            self.low, self.low_rows = _extreme((self.low, self.low_rows), low)
        if high[0] >= self.high:
            self.high, self.high_rows = _extreme((self.high, self.high_rows), high)

    def _moments(self, finite: npt.NDArray[Any], doubles: npt.NDArray[np.float64]) -> None:
        np.copyto(doubles, finite)
        mean = float(doubles.sum() / len(doubles))
        np.subtract(doubles, mean, out=doubles)
        self._pool(len(doubles), mean, sum_of_squares(doubles))

    def _extremes(self, finite: npt.NDArray[Any]) -> None:
        low, high = finite.min(), finite.max()
        if low < 0:
            self.negatives += int(np.count_nonzero(finite < 0))
        self._note_ends(
            (low.item(), int(np.count_nonzero(finite == low)) if low <= self.low else 0),
            (high.item(), int(np.count_nonzero(finite == high)) if high >= self.high else 0),
        )

    def _count_parts(self, part: npt.NDArray[np.int8], valid: Mask | None) -> None:
        for index in (0, 1):
            inside = part == index
            rows = int(np.count_nonzero(inside))
            there = rows if valid is None else int(np.count_nonzero(inside & valid))
            self.part_rows[index] += (rows, rows - there)

    def _split(self, single: npt.NDArray[np.float32], label: Marks | None, part: Marks | None) -> None:
        tops = single.view(np.uint32) >> np.uint32(16)
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
        self._pool(other.count, other.mean, other.squares)
        self._note_ends((other.low, other.low_rows), (other.high, other.high_rows))
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


def _marks(marks: Marks | None, rows: Mask | slice) -> Marks | None:
    return None if marks is None else marks[rows]


def _extreme(held: tuple[float, int], met: tuple[float, int]) -> tuple[float, int]:
    return (held[0], held[1] + met[1]) if held[0] == met[0] else met
