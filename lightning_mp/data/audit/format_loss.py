"""FormatLoss: what a cast to one format does to a column, counted."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import BINS, Counts
from lightning_mp.data.audit.rounding import rounded, top_halves
from lightning_mp.float_formats import FloatFormat

_ERRORS: Final = 0x3F81
"""Bins of the relative error: up to that of 1.0, which is a flush."""


class FormatLoss:
    """What a cast does to a column's finite numbers, on the way they are stored: float32 first.

    Attributes:
        overflowed: Become infinite.
        flushed: Are not zero and become zero.
        subnormal: Become subnormal, and not zero.
        exact: Stay what they are, zeros included.
        changed_whole: Integers that become another number.
        seen: (65536,) which of the format's numbers occur, for columns of integers.
        errors: Histogram of abs(cast - x) / abs(x), over numbers that are not zero and stay finite.
        squared_error: Sum of (cast - x)^2 over numbers that stay finite.
    """

    def __init__(self, number_format: FloatFormat) -> None:
        self.number_format = number_format
        self.overflowed = self.flushed = self.subnormal = self.exact = 0
        self.seen: npt.NDArray[np.bool_] = np.zeros(BINS, dtype=bool)
        self.errors: Counts = np.zeros(_ERRORS, dtype=np.int64)
        self.squared_error = 0.0

    def take_zeros(self, zeros: int) -> None:
        """Take in zeros, which every format holds."""
        self.exact += zeros
        if zeros:
            self.seen[0] = True

    def update(
        self, single: npt.NDArray[np.float32], values: npt.NDArray[Any], integers: npt.NDArray[np.float32] | None
    ) -> None:
        """Take in numbers.

        Args:
            single: (N,) as float32; not zero, not NaN.
            values: (N,) the same as they came: float32, float64 or int64, finite.
            integers: Those of them that are different, repeats allowed; `None` where the column has other numbers.
        """
        cast = rounded(single, self.number_format)
        if integers is not None:
            self._see(cast if integers is single else rounded(integers, self.number_format))
        size = np.abs(cast)
        if size.max() == np.inf:
            kept = size < np.inf
            self.overflowed += len(cast) - int(np.count_nonzero(kept))
            cast, values, size = cast[kept], values[kept], size[kept]
            if not len(cast):
                return
        if size.min() < self.number_format.smallest_normal:
            flushed = int(np.count_nonzero(size == 0))
            self.flushed += flushed
            self.subnormal += int(np.count_nonzero(size < np.float32(self.number_format.smallest_normal))) - flushed
        given = values if values.dtype == np.float32 else values.astype(np.float64)
        away = np.abs(cast - given)
        self.exact += len(away) - int(np.count_nonzero(away))
        doubles = away.astype(np.float64)
        np.square(doubles, out=doubles)
        self.squared_error += float(doubles.sum())
        np.divide(away, np.abs(given), out=away)
        counts = np.bincount(top_halves(away.astype(np.float32, copy=False)), minlength=_ERRORS)
        self.errors += counts[:_ERRORS]
        self.errors[-1] += int(counts[_ERRORS:].sum())

    def _see(self, cast: npt.NDArray[np.float32]) -> None:
        if self.number_format.exponent_bits == 8:
            self.seen[top_halves(cast)] = True
        else:
            self.seen[cast.astype(np.float16).view(np.uint16)] = True

    def merge(self, other: FormatLoss) -> None:
        """Take in what was counted over another piece."""
        self.overflowed += other.overflowed
        self.flushed += other.flushed
        self.subnormal += other.subnormal
        self.exact += other.exact
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
    def results(self) -> int:
        """Different numbers that a column of integers becomes."""
        return int(np.count_nonzero(self.seen))
