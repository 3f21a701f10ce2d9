"""Transforms of a numeric feature: fitted on the training part, applied in float64, repeatable in a graph.

The formulas use only `+ - * /`, log, abs, sign and clip, so that an exported graph gives the same numbers.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import Transform, TransformKind

Float64 = npt.NDArray[np.float64]


def fit(kind: TransformKind, values: npt.ArrayLike) -> Transform:
    """Fit a transform's constants.

    | kind | formula | constants |
    |---|---|---|
    | `none` | x | |
    | `zscore` | (x - mean) / std | `mean`, `std` (of the population; 1 for a constant column) |
    | `linear` | (x - offset) / scale: the fitted range becomes [-1, 1] | `offset`, `scale` |
    | `log1p` | log(max(x, 0) + 1) | |
    | `log1p_zscore` | `zscore` of `log1p` | `mean`, `std` |
    | `signed_log` | sign(x) * log(abs(x) + 1) | |

    Args:
        kind: One of the table.
        values: (N,) numbers of the training part, missing ones already filled.

    Raises:
        ConfigurationError: `kind` is not known.
        DataError: There are no values, one is not finite, or one is negative and `kind` is a `log1p`.

    Example:
        >>> fit("zscore", [1.0, 3.0]).constants
        {'mean': 2.0, 'std': 1.0}
        >>> apply(fit("log1p", [0.0, 1.0]), [0.0, -5.0]).tolist()
        [0.0, 0.0]
    """
    if kind not in get_args(TransformKind):
        known = ", ".join(f"`{name}`" for name in get_args(TransformKind))
        raise ConfigurationError(f"`{kind}` is not a transform", f"use one of {known}")
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise DataError(f"`{kind}` cannot be fitted: there is not one value", "drop the feature, or give it data")
    if not np.isfinite(x).all():
        raise DataError(f"`{kind}` cannot be fitted: {np.count_nonzero(~np.isfinite(x)):,} values are not finite",
                        "fill or reject them first")  # fmt: skip
    if kind in ("log1p", "log1p_zscore") and x.min() < 0:
        raise DataError(
            f"`{kind}` is for numbers from 0 on, {np.count_nonzero(x < 0):,} are negative, the smallest {x.min():g}",
            "use `signed_log`, or clean the column",
        )
    if kind == "linear":
        low, high = float(x.min()), float(x.max())
        return Transform(kind=kind, constants={"offset": low / 2 + high / 2, "scale": (high / 2 - low / 2) or 1.0})
    if kind in ("zscore", "log1p_zscore"):
        y = _log1p(x) if kind == "log1p_zscore" else x
        scale = float(np.abs(y).max()) or 1.0  # squares of huge values would overflow
        mean, std = float((y / scale).mean()) * scale, float((y / scale).std()) * scale
        # A constant column's mean is rounded, which leaves a std that is noise.
        std = 1.0 if y.min() == y.max() or std == 0.0 else std
        return Transform(kind=kind, constants={"mean": mean, "std": std})
    return Transform(kind=kind)


def apply(transform: Transform, values: npt.ArrayLike) -> Float64:
    """Transform numbers.

    Args:
        transform: As `fit` gave it.
        values: Any shape, float64; NaN stays NaN.

    Returns:
        float64 of the same shape.
    """
    x, constants = np.asarray(values, dtype=np.float64), transform.constants
    match transform.kind:
        case "zscore":
            return (x - constants["mean"]) / constants["std"]
        case "linear":
            return (x - constants["offset"]) / constants["scale"]
        case "log1p":
            return _log1p(x)
        case "log1p_zscore":
            return (_log1p(x) - constants["mean"]) / constants["std"]
        case "signed_log":
            return np.sign(x) * np.log(np.abs(x) + 1.0)
        case _:
            return x.copy()


def invert(transform: Transform, values: npt.ArrayLike) -> Float64:
    """Undo `apply`; numbers that a `log1p` clipped come back as 0.

    Args:
        transform: As `fit` gave it.
        values: Any shape, float64.

    Returns:
        float64 of the same shape.
    """
    y, constants = np.asarray(values, dtype=np.float64), transform.constants
    match transform.kind:
        case "zscore":
            return y * constants["std"] + constants["mean"]
        case "linear":
            return y * constants["scale"] + constants["offset"]
        case "log1p":
            return np.exp(y) - 1.0
        case "log1p_zscore":
            return np.exp(y * constants["std"] + constants["mean"]) - 1.0
        case "signed_log":
            return np.sign(y) * (np.exp(np.abs(y)) - 1.0)
        case _:
            return y.copy()


def _log1p(x: Float64) -> Float64:
    return np.asarray(np.log(np.maximum(x, 0.0) + 1.0))
