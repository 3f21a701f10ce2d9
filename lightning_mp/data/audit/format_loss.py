"""FormatLoss: what a cast to one format does to a column, counted."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import BINS, Counts
from lightning_mp.data.audit.rounding import rounded, rounded_sizes, top_halves
from lightning_mp.data.audit.working_memory import WorkingMemory
from lightning_mp.float_formats import FLOAT32, FloatFormat

_ERRORS: Final = 0x3F81
"""Bins of the relative error: up to that of 1.0, which is a flush."""


class FormatLoss:
    """What a cast does to a column's finite numbers, on the way they are stored: float32 first.

    Attributes:
        overflowed: Become infinite.
        flushed: Are not zero and become zero.
        subnormal: Become subnormal, and not zero.
        zeros: Are zero.
        seen: (65536,) which of the format's numbers occur, for columns of integers.
        errors: Histogram of abs(cast - x) / abs(x), over numbers that are not zero and stay finite.
        squared_error: Sum of (cast - x)^2 over numbers that stay finite.
    """

    def __init__(self, number_format: FloatFormat) -> None:
        self.number_format = number_format
        self.overflowed = self.flushed = self.subnormal = self.zeros = 0
        self.seen: npt.NDArray[np.bool_] = np.zeros(BINS, dtype=bool)
        self.errors: Counts = np.zeros(_ERRORS, dtype=np.int64)
        self.squared_error = 0.0

    def take_zeros(self, zeros: int) -> None:
        """Take in zeros, which every format holds."""
        self.zeros += zeros
        if zeros:
            self.seen[0] = True

    def see(self, integers: npt.NDArray[np.float32]) -> None:
        """Take in the different numbers of a column of integers.

        Args:
            integers: (K,) finite; repeats are allowed.
        """
        cast = rounded(integers, self.number_format)
        if self.number_format.exponent_bits == FLOAT32.exponent_bits:
            self.seen[top_halves(cast)] = True
        else:
            self.seen[cast.astype(np.float16).view(np.uint16)] = True

    def update(self, size: npt.NDArray[np.float32], given: npt.NDArray[Any], memory: WorkingMemory) -> None:
        """Take in numbers, without their signs.

        Args:
            size: (N,) as float32; not negative, not NaN.
            given: (N,) the same as they came, above zero: `size` itself, or float64 and finite.
            memory: To work in.
        """
        largest = float(size.max())
        if largest >= self.number_format.overflow_from:
            kept = size < np.float32(self.number_format.overflow_from)
            self.overflowed += len(size) - int(np.count_nonzero(kept))
            size, given = size[kept], given[kept] if given is not size else size[kept]
            if not len(size):
                return
            largest = float(size.max())
        count = len(size)
        cast = rounded_sizes(size, self.number_format, largest=largest, memory=memory)
        if size.min() < self.number_format.smallest_normal:
            flushed = count - int(np.count_nonzero(cast))
            self.flushed += flushed
            normal = np.float32(self.number_format.smallest_normal)
            self.subnormal += int(np.count_nonzero(cast < normal)) - flushed
        double, index = memory.double[:count], memory.index[:count]
        if given.dtype == np.float32:
            away = np.subtract(size, cast, out=cast)
            np.abs(away, out=away)
            np.copyto(double, away)
        else:
            np.subtract(given, cast, out=double)
            away = np.divide(double, given, out=cast, casting="same_kind")
            np.abs(away, out=away)
        np.square(double, out=double)
        self.squared_error += float(double.sum())
        if given.dtype == np.float32:
            np.divide(away, size, out=away)
        np.copyto(index, top_halves(away))
        np.add.at(self.errors, index, 1)

    def merge(self, other: FormatLoss) -> None:
        """Take in what was counted over another piece."""
        self.overflowed += other.overflowed
        self.flushed += other.flushed
        self.subnormal += other.subnormal
        self.zeros += other.zeros
        self.seen |= other.seen
        self.errors += other.errors
        self.squared_error += other.squared_error

    def error_quantile(self, share: float) -> float | None:
        """Quantile of the relative rounding error over numbers that are not zero and stay finite, within 0.4 %.

        Args:
            share: In [0, 1].
        """
        total = int(self.errors.sum())
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self.errors), max(1, np.ceil(share * total))))
        edges = np.array([place, place + 1], dtype=np.uint32) << np.uint32(16)
        low, high = edges.view(np.float32).astype(np.float64).tolist()
        return 0.0 if place == 0 else min((low + high) / 2, 1.0)

    @property
    def exact(self) -> int:
        """Numbers that stay what they are, zeros included."""
        return self.zeros + int(self.errors[0])  # the smallest error of another number is 2^-53 of it

    @property
    def results(self) -> int:
        """Different numbers that a column of integers becomes."""
        return int(np.count_nonzero(self.seen))
