"""The number that a log would have held, from what a store made of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data import transforms
from lightning_mp.schema import Feature

_DECIMALS = 25


def plain_number(feature: Feature, value: float) -> float | int:
    """The number with the fewest decimals that is stored as this one is: 42 for 41.999752214836704.

    A store in half precision keeps three digits, so that what comes back of a count or a price is near it, and no more.
    The number given here becomes the same stored one, and so the same score.

    Args:
        feature: Numeric, with the transform and the type it is stored in.
        value: As `decode_rows` gives it; what is not finite comes back as it is.

    Returns:
        An `int` where it is whole.

    Example:
        >>> from lightning_mp.schema import Transform
        >>> age = Feature(name="age", kind="numeric", role="user", source_dtype="double", stored_dtype="float16",
        ...               transform=Transform(kind="zscore", constants={"mean": 40.0, "std": 12.0}))
        >>> plain_number(age, 41.999752214836704), plain_number(age, 22.203)
        (42, 22.2)
    """
    if not np.isfinite(value):
        return value
    expected = _stored(feature, value)
    for candidate in _shorter(value):
        if np.array_equal(_stored(feature, candidate), expected, equal_nan=True):
            return int(candidate) if candidate.is_integer() and abs(candidate) < 2**53 else candidate
    return value


def _shorter(value: float) -> Iterator[float]:
    yield from (round(value, decimals) + 0.0 for decimals in range(_DECIMALS))  # + 0.0: never -0.0
    yield from (float(f"{value:.{digits}g}") for digits in range(1, 18))


def _stored(feature: Feature, value: float) -> NDArray[np.generic]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        moved = transforms.apply(feature.transform, np.array([value]))
        made: NDArray[np.generic] = moved.astype(np.float32).astype(feature.stored_dtype)
    return made
