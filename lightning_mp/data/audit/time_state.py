"""TimeState: what one pass over a column of times keeps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.bins import Counts
from lightning_mp.data.audit.distinct_sketch import DistinctSketch, hashes_of
from lightning_mp.data.audit.finding import Finding
from lightning_mp.data.audit.statistics import ColumnStatistics
from lightning_mp.data.iso_time import to_iso


class TimeState:
    """What one pass over a column of times keeps; all times are int64 UTC microseconds.

    Args:
        now: Times after it lie in the future.

    Attributes:
        rows: Rows seen.
        nulls: Missing ones.
        future: After `now`.
        epoch: Exactly 1970-01-01, the zero of clocks.
        low: Earliest time.
        high: Latest time.
        distinct: Different times.
        part_rows: (2, 2) rows and missing ones of the first and the last part.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.rows = self.nulls = self.future = self.epoch = 0
        self.low: int | None = None
        self.high: int | None = None
        self.distinct = DistinctSketch()
        self.part_rows: Counts = np.zeros((2, 2), dtype=np.int64)

    def update(
        self, times: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_] | None,
        *, part: npt.NDArray[np.int8] | None = None,
    ) -> None:  # fmt: skip
        """Take in a piece of the column.

        Args:
            times: (V,) without the missing ones.
            valid: (N,) which rows are not missing; `None` where all are there.
            part: (N,) 0 in the first part, 1 in the last, -1 between.
        """
        rows = len(times) if valid is None else len(valid)
        self.rows, self.nulls = self.rows + rows, self.nulls + rows - len(times)
        if part is not None:
            for index in (0, 1):
                inside = part == index
                lost = 0 if valid is None else int(np.count_nonzero(inside & ~valid))
                self.part_rows[index] += (int(np.count_nonzero(inside)), lost)
        if len(times):
            self.future += int(np.count_nonzero(times > self.now))
            self.epoch += int(np.count_nonzero(times == 0))
            low, high = int(times.min()), int(times.max())
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)
            self.distinct.update(hashes_of(times))

    def merge(self, other: TimeState) -> None:
        """Take in the state of another piece of the same column."""
        for name in ("rows", "nulls", "future", "epoch"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        self.low, self.high = min(lows, default=None), max(highs, default=None)
        self.distinct.merge(other.distinct)
        self.part_rows += other.part_rows

    def statistics(self) -> ColumnStatistics:
        """Rows, missing and different ones."""
        first, last = (missing / rows if rows else None for rows, missing in self.part_rows.tolist())
        return ColumnStatistics(
            rows=self.rows, missing=self.nulls, distinct=self.distinct.count, distinct_exact=self.distinct.exact,
            missing_first=first, missing_last=last,
        )  # fmt: skip

    def findings(self, name: str) -> Iterator[Finding]:
        """Times in the future, the zero of clocks, and nothing at all.

        Args:
            name: Of the column.
        """
        if self.low is None or self.high is None:
            problem = f"all {self.rows:,} rows are missing"
            yield Finding(code="MP013", severity="warning", column=name, problem=problem, cure="drop the column")
            return
        if self.future:
            problem = f"{self.future:,} times lie in the future, the latest is {to_iso(self.high)}"
            yield Finding(code="MP025", severity="warning", column=name, problem=problem, cure="reject these rows")
        if self.epoch:
            problem = f"{self.epoch:,} times are 1970-01-01, the zero of clocks"
            yield Finding(code="MP011", severity="warning", column=name, problem=problem, cure="treat it as missing")
