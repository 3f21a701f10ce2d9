"""FormatLoss: what a cast to one format does to a column, counted."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import BINS, Counts
from lightning_mp.data.audit.rounding import rounded, rounded_sizes, top_halves
from lightning_mp.data.audit.sum_of_squares import sum_of_squares
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
            integers: (K,) not NaN; repeats are allowed.
        """
        cast = rounded(integers, self.number_format)
        if self.number_format.exponent_bits == FLOAT32.exponent_bits:
            self.seen[cast.view(np.uint32) >> np.uint32(16)] = True
        else:
            self.seen[cast.astype(np.float16).view(np.uint16)] = True

    def update_counted(self, size: npt.NDArray[np.float64], counts: Counts) -> None:
        """Take in integers, without their signs, each once with its rows.

        Args:
            size: (K,) finite, from 1 on.
            counts: (K,) rows of each.
        """
        with np.errstate(over="ignore"):
            cast = rounded(size.astype(np.float32), self.number_format).astype(np.float64)
        kept = np.isfinite(cast)
        if not kept.all():
            self.overflowed += int(counts[~kept].sum())
            size, cast, counts = size[kept], cast[kept], counts[kept]
        away = np.abs(size - cast)
        self.squared_error += float((away * away * counts).sum())
        np.add.at(self.errors, (away / size).astype(np.float32).view(np.uint32) >> np.uint32(16), counts)

    def update(
        self, size: npt.NDArray[np.float32], given: npt.NDArray[Any], memory: WorkingMemory,
        *, smallest: float, largest: float,
    ) -> None:  # fmt: skip
        """Take in numbers, without their signs.

        Args:
            size: (N,) as float32; not negative, not NaN.
            given: (N,) the same as they came, above zero: `size` itself, or float64 and finite.
            memory: To work in.
            smallest: The smallest of `size`.
            largest: The largest of `size`.
        """
        own = self.number_format
        if largest >= own.overflow_from:
            kept = size < np.float32(own.overflow_from)
            self.overflowed += len(size) - int(np.count_nonzero(kept))
            alone = given is size
            size = size[kept]
            given = size if alone else given[kept]
            if not len(size):
                return
            largest = float(size.max())
        count = len(size)
        cast = rounded_sizes(size, own, largest=largest, smallest=smallest, memory=memory)
        if smallest < own.smallest_normal:
            flushed = int(np.count_nonzero(size <= np.float32(own.flush_until))) if smallest <= own.flush_until else 0
            self.flushed += flushed
            self.subnormal += int(np.count_nonzero(cast < np.float32(own.smallest_normal))) - flushed
        double, index = memory.double[:count], memory.index[:count]
        if given.dtype == np.float32:
            away = np.subtract(size, cast, out=cast)
            np.copyto(double, away)
        else:
            np.subtract(given, cast, out=double)
            away = np.divide(double, given, out=cast, casting="same_kind")
        self.squared_error += sum_of_squares(double)
        if given.dtype == np.float32:
            np.divide(away, size, out=away)
        np.add.at(self.errors, top_halves(away, index, sign=False), 1)

    def merge(self, other: FormatLoss) -> None:
        """Take in what was counted over another piece."""
        self.overflowed += other.overflowed
        self.flushed += other.flushed
        self.subnormal += other.subnormal
        self.zeros += other.zeros
        self.seen |= other.seen
        self.errors += other.errors
        self.squared_error += other.squared_error

    def error_quantiles(self, *shares: float) -> list[float | None]:
        """Quantiles of the relative rounding error over numbers that are not zero and stay finite, within 0.4 %.

        Args:
            shares: Each in [0, 1].
        """
        ends = np.cumsum(self.errors)
        total = int(ends[-1])
        if not total:
            return [None] * len(shares)
        places = np.searchsorted(ends, [max(1, math.ceil(share * total)) for share in shares]).astype(np.uint32)
        edges = (np.stack([places, places + 1]) << np.uint32(16)).view(np.float32).astype(np.float64)
        middles = np.minimum(edges.mean(axis=0), 1.0)
        return [0.0 if place == 0 else middle for place, middle in zip(places.tolist(), middles.tolist(), strict=True)]

    @property
    def exact(self) -> int:
        """Numbers that stay what they are, zeros included."""
        return self.zeros + int(self.errors[0])  # the smallest error of another number is 2^-53 of it

    @property
    def results(self) -> int:
        """Different numbers that a column of integers becomes."""
        return int(np.count_nonzero(self.seen))
