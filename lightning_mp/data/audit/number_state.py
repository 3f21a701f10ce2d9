"""NumberState: all that one pass over a column of numbers keeps, whatever its length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import BINS, Counts
from lightning_mp.data.audit.distinct_sketch import DistinctSketch, hashes_of
from lightning_mp.data.audit.format_loss import FormatLoss
from lightning_mp.data.audit.rounding import FORMATS, top_halves

Mask = npt.NDArray[np.bool_]


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
        label: npt.NDArray[np.int8] | None = None,
        part: npt.NDArray[np.int8] | None = None,
    ) -> None:
        """Take in a piece of the column.

        Args:
            values: (V,) float32, float64 or int64, without the missing ones.
            valid: (N,) which rows are not missing; `None` where all are there.
            label: (N,) 1 with the label, 0 without, -1 where it is missing.
            part: (N,) 0 in the first part, 1 in the last, -1 between.
        """
        rows = len(values) if valid is None else len(valid)
        self.rows, self.nulls = self.rows + rows, self.nulls + rows - len(values)
        if part is not None:
            self._count_parts(part, valid)
        if not len(values):
            return
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            self._take(values, valid, label, part)

    def _take(
        self, values: npt.NDArray[Any], valid: Mask | None, label: npt.NDArray[np.int8] | None,
        part: npt.NDArray[np.int8] | None,
    ) -> None:  # fmt: skip
        single = values.astype(np.float32, copy=False)
        tops = top_halves(single)
        counts = np.bincount(tops, minlength=BINS)
        self.histogram += counts
        self._split(tops, valid, label, part)
        finite = values
        if counts[0x7F80:0x8000].any() or counts[0xFF80:].any():
            kept = np.isfinite(values)
            self.nans += int(np.count_nonzero(np.isnan(values)))
            finite, single = values[kept], single[kept]
            self.infinities += int(len(values) - np.count_nonzero(np.isnan(values)) - len(finite))
            self.beyond_float32 += int(np.count_nonzero(np.isinf(single)))
        if not len(finite):
            return
        doubles = finite.astype(np.float64, copy=False)
        self._moments(doubles)
        self._extremes(finite)
        self.whole = self.whole and bool((np.floor(doubles) == doubles).all())
        self.bits |= int(np.bitwise_or.reduce(np.ascontiguousarray(single).view(np.uint32)))
        self.distinct.update(hashes_of(finite))
        self._cast(finite, single, zeros_possible=bool(counts[0] or counts[0x8000]))

    def _cast(self, finite: npt.NDArray[Any], single: npt.NDArray[np.float32], *, zeros_possible: bool) -> None:
        if zeros_possible:
            there = finite != 0
            zeros = len(finite) - int(np.count_nonzero(there))
            self.zeros += zeros
            for loss in self.losses.values():
                loss.take_zeros(zeros)
            if zeros:
                finite, single = finite[there], single[there]
        if len(finite):
            size = np.abs(single if finite.dtype == np.float32 else finite.astype(np.float64))
            self.smallest = min(self.smallest, float(size.min()))
            integers = _integers(single) if self.whole else None
            for loss in self.losses.values():
                loss.update(single, finite, integers)

    def _moments(self, doubles: npt.NDArray[np.float64]) -> None:
        count = len(doubles)
        mean = float(doubles.mean())
        away = doubles - mean
        np.square(away, out=away)
        squares = float(away.sum())  # pairwise; a BLAS would start threads of its own
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

    def _split(
        self, tops: npt.NDArray[np.uint16], valid: Mask | None, label: npt.NDArray[np.int8] | None,
        part: npt.NDArray[np.int8] | None,
    ) -> None:  # fmt: skip
        if label is not None and self.positives is not None and self.labelled is not None:
            marks = label if valid is None else label[valid]
            self.positives += np.bincount(tops[marks == 1], minlength=BINS)
            self.labelled += np.bincount(tops[marks >= 0] if (marks < 0).any() else tops, minlength=BINS)
        if part is not None and self.parts is not None:
            marks = part if valid is None else part[valid]
            for index in (0, 1):
                self.parts[index] += np.bincount(tops[marks == index], minlength=BINS)

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


def _integers(single: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The integers that occur, each once where they lie close together."""
    low, high = float(single.min()), float(single.max())
    if high - low >= 1 << 16:
        return single
    counts = np.bincount((single - np.float32(low)).astype(np.intp))
    return (np.flatnonzero(counts) + low).astype(np.float32)


def pooled(one: tuple[int, float, float], other: tuple[int, float, float]) -> tuple[int, float, float]:
    """Count, mean and squared distances of two sets together.

    Source:
        Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979).
    """
    if not one[0] or not other[0]:
        return one if one[0] else other
    count, apart = one[0] + other[0], other[1] - one[1]
    share = other[0] / count
    return count, one[1] + apart * share, one[2] + other[2] + apart * apart * one[0] * share


def _extreme(held: tuple[float, int], met: tuple[float, int]) -> tuple[float, int]:
    return (held[0], held[1] + met[1]) if held[0] == met[0] else met
