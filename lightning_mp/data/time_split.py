"""Train, validation and test parts by time, so that no part knows what came after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightning_mp.data.durations import duration_us
from lightning_mp.data.iso_time import to_iso, to_microseconds
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.errors import ConfigurationError, DataError

PARTS = ("train", "validation", "test")
EMBARGO = "embargo"
"""Rows that belong to no part: too close before a cut."""
NAMES = np.array([*PARTS, EMBARGO], dtype="<U10")
"""Of the codes of parts."""
TRAIN, VALIDATION, TEST, NO_PART = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Cut a log at two points in time: before them is training, between them validation, after them test.

    Rows of one time always fall on one side of a cut (the later one), so the parts may be a little larger or
    smaller than asked for.

    Args:
        validation: Share in [0, 1) of the rows before the test part, the latest of them; 0 for no such part.
        test: Share in (0, 1) of all rows, the latest of them; not used when `at` is given.
        at: Point in time from which on rows are test, as an ISO date or time; without an offset it is UTC.
        embargo: Length of time before each cut whose rows belong to no part, such as `1d`. Left out: as long as a label
            looks ahead, so that no training label is decided by what happened in a later part.

    Raises:
        ConfigurationError: A share is outside its range, `at` is not an ISO date or time, or `embargo` no length.

    Example:
        >>> TimeSplit(validation=0.25, test=0.5).parts([10, 20, 30, 40, 50, 60, 70, 80]).tolist()
        ['train', 'train', 'train', 'validation', 'test', 'test', 'test', 'test']
    """

    validation: float = 0.1
    test: float = 0.2
    at: str | None = None
    embargo: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise ConfigurationError(f"`split.validation` must be in [0, 1), got {self.validation!r}", "use 0.1")
        if not 0 < self.test < 1:
            raise ConfigurationError(f"`split.test` must be in (0, 1), got {self.test!r}", "use 0.2")
        if self.at is not None:
            _microseconds(self.at)
        if self.embargo is not None:
            duration_us(self.embargo, name="split.embargo")

    def parts(self, time: npt.ArrayLike, *, horizon_us: int = 0) -> npt.NDArray[np.str_]:
        """The part of each row.

        Args:
            time: (N,) int64 UTC microseconds, in any order.
            horizon_us: How far a row's label looks ahead; the embargo where `embargo` is left out.

        Returns:
            (N,) text: `"train"`, `"validation"`, `"test"`, or `"embargo"`.

        Raises:
            DataError: A part that was asked for would be empty: too few rows, too few distinct times, or `at`
                outside the log.
        """
        return NAMES[self.codes(time, horizon_us=horizon_us)]

    def codes(self, time: npt.ArrayLike, *, horizon_us: int = 0) -> npt.NDArray[np.int8]:
        """The part of each row, as its place in `NAMES`.

        Args:
            time: As for `parts`.
            horizon_us: As for `parts`.

        Raises:
            DataError: As for `parts`.
        """
        moments = np.asarray(time, dtype=np.int64)
        if moments.size == 0:
            raise DataError("there are no rows to split", "check the log")
        ordered = scratch_array(moments.shape, np.int64)
        ordered[:] = moments
        ordered.sort()
        test_from = self._test_from(ordered)
        before = ordered[: int(np.searchsorted(ordered, test_from, side="left"))]
        if not before.size or before.size == ordered.size:
            first, last = to_iso(int(ordered[0])), to_iso(int(ordered[-1]))
            side = "training" if not before.size else "test"
            problem = (
                f"the time split at {to_iso(test_from)} leaves no {side} rows: the log goes from {first} to {last}"
            )
            raise DataError(problem, "move `split.at`, or use `split.test` on a log that spans more time")
        gap = horizon_us if self.embargo is None else duration_us(self.embargo, name="split.embargo")
        cuts = [(test_from, TEST)]
        if self.validation:
            validation_from = int(before[_position(before.size, self.validation)])
            if validation_from == before[0]:
                problem = (
                    f"the time split leaves no training rows before the validation part at {to_iso(validation_from)}"
                )
                raise DataError(problem, "lower `split.validation`, or use a log that spans more time")
            cuts.insert(0, (validation_from, VALIDATION))
        parts = scratch_array(moments.shape, np.int8)
        for piece in row_pieces(len(moments)):
            parts[piece] = TRAIN
            for cut, part in cuts:
                parts[piece][moments[piece] >= cut - gap] = NO_PART
                parts[piece][moments[piece] >= cut] = part
        for part, name in enumerate(PARTS) if gap else ():
            if not (parts == part).any() and (part != VALIDATION or self.validation):
                problem = f"an embargo of {gap / 3.6e9:g} hours leaves no {name} rows"
                hint = "shorten the label's window, set `split.embargo: 0s`, or use a log that spans more time"
                raise DataError(problem, hint)
        return parts

    def _test_from(self, ordered: npt.NDArray[np.int64]) -> int:
        if self.at is not None:
            return _microseconds(self.at)
        return int(ordered[_position(ordered.size, self.test)])


def _position(rows: int, share: float) -> int:
    return min(max(round(rows * (1.0 - share)), 0), rows - 1)


def _microseconds(text: str) -> int:
    try:
        return to_microseconds(text)
    except ValueError as error:
        problem = f"`split.at` must be an ISO date or time, got {text!r}"
        raise ConfigurationError(problem, "write it as 2017-11-01") from error
