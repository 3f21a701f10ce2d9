"""The quantile transform: numbers to their place among the training rows, by straight lines between knots."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

KNOTS: Final = 65
"""Quantiles from 0 to 1 in steps of 1/64: at most, since equal ones are one knot."""


def fit_quantile(values: Float64) -> dict[str, float]:
    """Fit the knots.

    Memory is bounded: beyond a million rows the knots are found among every k-th row, at most two million of them.

    Args:
        values: (N,) finite numbers.

    Returns:
        Constants `x00`, `y00`, `x01`, ...: rising knots, and their places in [-1, 1]; a number that many rows hold
        stands in the middle of its places. One knot alone, for a constant column, has place 0.
    """
    if len(values) > 1_000_000:
        values = values[:: len(values) // 1_000_000]
    knots = np.quantile(values, np.linspace(0.0, 1.0, KNOTS), method="inverted_cdf")
    distinct, first, count = np.unique(knots, return_index=True, return_counts=True)
    places = (2.0 * first + count - 1.0) / (KNOTS - 1) - 1.0
    if len(distinct) == 1:
        places = np.zeros(1)
    constants: dict[str, float] = {}
    for index, (x, y) in enumerate(zip(distinct.tolist(), places.tolist(), strict=True)):
        constants |= {f"x{index:02d}": x, f"y{index:02d}": y}
    return constants


def knots_of(constants: dict[str, float]) -> tuple[Float64, Float64, Float64]:
    """Knots, their places, and the slope behind each: 0 behind the last.

    Args:
        constants: As `fit_quantile` gave them.
    """
    count = sum(name.startswith("x") for name in constants)
    x = np.array([constants[f"x{index:02d}"] for index in range(count)])
    y = np.array([constants[f"y{index:02d}"] for index in range(count)])
    with np.errstate(over="ignore"):
        slopes = np.diff(y) / np.diff(x)
    return x, y, np.append(slopes, 0.0)


def apply_quantile(constants: dict[str, float], values: Float64) -> Float64:
    """Places of numbers; those outside the knots have the place of the nearest one, NaN stays NaN.

    Args:
        constants: As `fit_quantile` gave them.
        values: Any shape, float64.
    """
    x, y, slopes = knots_of(constants)
    inside = np.clip(values, x[0], x[-1])
    place = np.maximum(np.searchsorted(x, inside, side="right") - 1, 0)
    place = np.minimum(place, len(x) - 1)  # NaN sorts behind everything
    return np.asarray(y[place] + (inside - x[place]) * slopes[place])


def invert_quantile(constants: dict[str, float], places: Float64) -> Float64:
    """Numbers at places.

    Args:
        constants: As `fit_quantile` gave them.
        places: Any shape, float64.
    """
    x, y, _ = knots_of(constants)
    return np.asarray(np.interp(places, y, x))
