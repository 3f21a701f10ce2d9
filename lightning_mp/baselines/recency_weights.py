"""Weights that fade with age: what a user did lately says more of what comes next."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError


def recency_weights(
    user: ArrayLike, time: ArrayLike, *, half_life: int | None = None, per_step: float | None = None
) -> NDArray[np.float64]:
    """Weight of each row by its age in time, or by how many of the user's rows came after it.

    Args:
        user: (N,) integer codes.
        time: (N,) int64 UTC microseconds. Rows of a user with the same time follow each other as they stand.
        half_life: Microseconds after which a row weighs half as much; the newest row of all weighs 1.
        per_step: Factor in (0, 1] for each later row of the same user; a user's last row weighs 1.

    Returns:
        (N,) float64 in (0, 1], in the order of the rows.

    Raises:
        ConfigurationError: Not one of the two is given, one is out of range, or there is not one time a user.

    Example:
        >>> recency_weights([7, 7, 8], [10, 30, 20], per_step=0.8)
        array([0.8, 1. , 1. ])
        >>> recency_weights([7, 7, 8], [10, 30, 20], half_life=10)
        array([0.25, 1.  , 0.5 ])
    """
    users, times = np.asarray(user, dtype=np.int64), np.asarray(time, dtype=np.int64)
    if users.shape != times.shape:
        raise ConfigurationError(f"there are {len(users):,} users and {len(times):,} times", "give one time a row")
    if (half_life is None) == (per_step is None):
        raise ConfigurationError("weights need one of `half_life` and `per_step`", "use `per_step=0.8`")
    if half_life is not None:
        if half_life <= 0:
            raise ConfigurationError(f"`half_life` must be above 0 microseconds, got {half_life!r}", "use 30 days")
        return np.asarray(np.exp2((times - times.max(initial=0 if not len(times) else times[0])) / half_life))
    if not 0 < per_step <= 1:  # type: ignore[operator]  # one of the two is given
        raise ConfigurationError(f"`per_step` must be in (0, 1], got {per_step!r}", "use 0.8")
    order = np.lexsort((np.arange(len(users)), times, users))
    ordered = users[order]
    later = np.searchsorted(ordered, ordered, side="right") - 1 - np.arange(len(users))
    weights = np.empty(len(users))
    weights[order] = float(per_step) ** later  # type: ignore[arg-type]  # as above
    return weights
