"""Transforms of a numeric feature: fitted on the training part, applied in float64, repeatable in a graph.

The formulas use only `+ - * /`, log, abs, sign, clip and comparisons, so that an exported graph gives the same numbers.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import numpy.typing as npt

from lightning_mp.data.chosen_rows import chosen_rows
from lightning_mp.data.quantile_transform import apply_quantile, fit_quantile, invert_quantile
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
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
    | `power_of_two` | x * scale: the largest magnitude comes into [1/2, 1), and no bit is lost | `scale`, 2^k |
    | `log1p` | log(max(x, 0) + 1) | |
    | `log1p_zscore` | `zscore` of `log1p` | `mean`, `std` |
    | `log1p_flag` | `log1p_zscore`, 0 where x is 0; and a column, 1 where x is 0 | `mean`, `std` where x is not 0 |
    | `signed_log` | sign(x) * log(abs(x) + 1) | |
    | `robust_clip` | `zscore` of x clipped to the 0.1th and 99.9th percentile | `low`, `high`, `mean`, `std` |
    | `quantile` | the place among the training rows, in [-1, 1] | knots `x00`, their places `y00`, ... |

    Any kind may have `valid_from`, `valid_to` and `stand_in` besides, which the caller adds: what lies outside becomes
    `stand_in` first.

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
        >>> apply(fit("power_of_two", [3e-7, 1e-6]), [2.0**-20]).tolist()
        [0.5]
    """
    if kind not in get_args(TransformKind):
        known = ", ".join(f"`{name}`" for name in get_args(TransformKind))
        raise ConfigurationError(f"`{kind}` is not a transform", f"use one of {known}")
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        raise DataError(f"`{kind}` cannot be fitted: there is not one value", "drop the feature, or give it data")
    unfit = sum(int(np.count_nonzero(~np.isfinite(x[piece]))) for piece in row_pieces(len(x)))
    if unfit:
        raise DataError(f"`{kind}` cannot be fitted: {unfit:,} values are not finite", "fill or reject them first")
    if kind.startswith("log1p") and x.min() < 0:
        raise DataError(
            f"`{kind}` is for numbers from 0 on, {np.count_nonzero(x < 0):,} are negative, the smallest {x.min():g}",
            "use `signed_log`, or clean the column",
        )
    return Transform(kind=kind, constants=_constants(kind, x))


def _constants(kind: TransformKind, x: Float64) -> dict[str, float]:  # noqa: PLR0911  one line a kind
    match kind:
        case "linear":
            low, high = float(x.min()), float(x.max())
            return {"offset": low / 2 + high / 2, "scale": (high / 2 - low / 2) or 1.0}
        case "power_of_two":
            exponent = int(np.frexp(_largest(x))[1])
            return {"scale": 2.0 ** min(-exponent, 1023)}
        case "zscore":
            return _moments(x)
        case "log1p_zscore":
            return _moments(_log1p(x))
        case "log1p_flag":
            there = chosen_rows(x, x != 0)
            return _moments(_log1p(there if len(there) else x))
        case "robust_clip":
            held = scratch_array(len(x), np.float64)
            held[:] = x
            low, high = np.quantile(held, (0.001, 0.999), overwrite_input=True).tolist()
            return {"low": low, "high": high, **_moments(np.clip(x, low, high, out=held))}
        case "quantile":
            return fit_quantile(x)
        case _:
            return {}


def apply(transform: Transform, values: npt.ArrayLike) -> Float64:  # noqa: PLR0911  one line a kind
    """Transform numbers.

    Args:
        transform: As `fit` gave it.
        values: Any shape, float64; NaN stays NaN.

    Returns:
        float64 of the same shape; of that shape and 2 for `log1p_flag`.
    """
    constants = transform.constants
    x = _valid(np.asarray(values, dtype=np.float64), constants)
    match transform.kind:
        case "zscore":
            return (x - constants["mean"]) / constants["std"]
        case "linear":
            return (x - constants["offset"]) / constants["scale"]
        case "power_of_two":
            return x * constants["scale"]
        case "log1p":
            return _log1p(x)
        case "log1p_zscore":
            return (_log1p(x) - constants["mean"]) / constants["std"]
        case "log1p_flag":
            scaled = np.where(x == 0, 0.0, (_log1p(x) - constants["mean"]) / constants["std"])
            return np.stack([scaled, (x == 0).astype(np.float64)], axis=-1)
        case "signed_log":
            return np.sign(x) * np.log(np.abs(x) + 1.0)
        case "robust_clip":
            return (np.clip(x, constants["low"], constants["high"]) - constants["mean"]) / constants["std"]
        case "quantile":
            return apply_quantile(constants, x)
        case _:
            return x.copy()


def invert(transform: Transform, values: npt.ArrayLike) -> Float64:  # noqa: PLR0911  one line a kind
    """Undo `apply`.

    `power_of_two` comes back to the bit, the others to float64's rounding. What `log1p` or `robust_clip` clipped
    comes back as the limit, and what lies outside the knots of `quantile` as the nearest one.

    Args:
        transform: As `fit` gave it.
        values: Any shape, float64; for `log1p_flag` that shape and 2.

    Returns:
        float64 of the shape that `apply` was given.
    """
    y, constants = np.asarray(values, dtype=np.float64), transform.constants
    match transform.kind:
        case "zscore" | "robust_clip":
            return y * constants["std"] + constants["mean"]
        case "linear":
            return y * constants["scale"] + constants["offset"]
        case "power_of_two":
            return y / constants["scale"]
        case "log1p":
            return np.exp(y) - 1.0
        case "log1p_zscore":
            return np.exp(y * constants["std"] + constants["mean"]) - 1.0
        case "log1p_flag":
            return np.where(y[..., 1] == 1.0, 0.0, np.exp(y[..., 0] * constants["std"] + constants["mean"]) - 1.0)
        case "signed_log":
            return np.sign(y) * (np.exp(np.abs(y)) - 1.0)
        case "quantile":
            return invert_quantile(constants, y)
        case _:
            return y.copy()


def width(kind: TransformKind) -> int:
    """Columns that a transform makes of one.

    Args:
        kind: One of the table of `fit`.
    """
    return 2 if kind == "log1p_flag" else 1


def _valid(x: Float64, constants: dict[str, float]) -> Float64:
    """Numbers below `valid_from` or above `valid_to` become `stand_in`, where a transform has these."""
    if "valid_from" in constants:
        x = np.where(x < constants["valid_from"], constants["stand_in"], x)
    if "valid_to" in constants:
        x = np.where(x > constants["valid_to"], constants["stand_in"], x)
    return x


def _log1p(x: Float64) -> Float64:
    made: Float64 = np.maximum(x, 0.0, out=scratch_array(x.shape, np.float64))
    np.add(made, 1.0, out=made)
    return np.log(made, out=made)


def _largest(x: Float64) -> float:
    return max(abs(float(x.min())), abs(float(x.max())))


def _moments(y: Float64) -> dict[str, float]:
    scale = _largest(y) or 1.0  # squares of huge values would overflow
    scaled: Float64 = np.divide(y, scale, out=scratch_array(len(y), np.float64))
    middle = scaled.mean()
    # What `std` does, in the memory that is there already.
    np.subtract(scaled, middle, out=scaled)
    np.multiply(scaled, scaled, out=scaled)
    mean, std = float(middle) * scale, float(np.sqrt(np.add.reduce(scaled) / len(scaled))) * scale
    # A constant column's mean is rounded, and so are constant values that were computed: their std is noise.
    constant = y.max() - y.min() <= 4 * np.spacing(_largest(y))
    return {"mean": mean, "std": 1.0 if constant or std == 0.0 else std}
