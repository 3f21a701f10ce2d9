"""Train, validation and test parts by each user's last events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.time_split import NAMES, TEST, TRAIN, VALIDATION
from lightning_mp.errors import ConfigurationError, DataError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveLastOut:
    """Leave the last events of each user to the test part, those before them to the validation part.

    It is how next-item models are compared in the literature. What other users do later is known in training, so its
    figures are kinder than those of a `TimeSplit`: a service knows nothing of tomorrow. A user with too few events for
    all three parts is trained on only. Events of one time stand in the order of the log.

    Args:
        leave_out: Events of each user in the test part, and as many in the validation part; from 1.

    Raises:
        ConfigurationError: `leave_out` is below 1.

    Example:
        >>> LeaveLastOut(leave_out=1).parts([7, 7, 7, 8, 7], [10, 20, 30, 15, 40]).tolist()
        ['train', 'train', 'validation', 'train', 'test']
    """

    leave_out: int

    def __post_init__(self) -> None:
        if self.leave_out < 1:
            raise ConfigurationError(f"`split.leave_out` must be at least 1, got {self.leave_out}", "use 1")

    def parts(self, user: npt.ArrayLike, time: npt.ArrayLike) -> npt.NDArray[np.str_]:
        """The part of each row.

        Args:
            user: (N,) codes.
            time: (N,) int64 UTC microseconds.

        Returns:
            (N,) text: `"train"`, `"validation"` or `"test"`.

        Raises:
            DataError: No user has enough events.
        """
        return NAMES[self.codes(user, time)]

    def codes(self, user: npt.ArrayLike, time: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """The part of each row, as its place in `NAMES`.

        Args:
            user: As for `parts`.
            time: As for `parts`.

        Raises:
            DataError: As for `parts`.
        """
        who, when = np.asarray(user, dtype=np.int64), np.asarray(time, dtype=np.int64)
        parts, most = scratch_array(len(who), np.int8), 0
        for places in key_buckets(who):
            parts[places], count = self._of_users(who[places], when[places])
            most = max(most, count)
        if most <= 2 * self.leave_out:
            problem = f"no user has more than {2 * self.leave_out} events, the most is {most}: no row can be left out"
            raise DataError(problem, "lower `split.leave_out`, or split by time")
        return parts

    def _of_users(self, who: Int64, when: Int64) -> tuple[npt.NDArray[np.int8], int]:
        """The parts of all rows of some users, and the most rows of one."""
        order = np.lexsort((when, who))
        _, first, count = np.unique(who[order], return_index=True, return_counts=True)
        from_end = np.repeat(first + count, count) - 1 - np.arange(len(who))
        enough = np.repeat(count > 2 * self.leave_out, count)
        found = np.full(len(who), TRAIN, dtype=np.int8)
        found[order[enough & (from_end < 2 * self.leave_out)]] = VALIDATION
        found[order[enough & (from_end < self.leave_out)]] = TEST
        return found, int(count.max(initial=0))
