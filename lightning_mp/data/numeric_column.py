"""A numeric feature: missing values filled, transform fitted, and stored in the smallest float that it survives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data import transforms
from lightning_mp.data.advised_transform import advised_transform
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.stored_precision import float16_loss
from lightning_mp.errors import DataError
from lightning_mp.float_formats import FLOAT16
from lightning_mp.schema import Feature, Transform, TransformKind

Float64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def fit_numeric(
    spec: FeatureSpec, column: pa.ChunkedArray, rows: pa.ChunkedArray, training: Mask
) -> tuple[Feature, Float64, str]:
    """Fit a numeric feature on the training part and transform all rows.

    Args:
        spec: As declared.
        column: (N,) double, null where missing.
        rows: (N,) row of each in the source, for errors.
        training: (N,) rows of the training part.

    Returns:
        The schema's entry, (N,) float64 after the transform (the weight as it is), and one line on how it came out.

    Raises:
        DataError: There is no value in the training part, a missing value where that is refused, or a negative number
            where the transform or a weight allows none.
    """
    raw = column.to_numpy().astype(np.float64)
    advised, limits, advice = advised_transform(spec, raw[training])
    outside = np.zeros(len(raw), dtype=bool)
    if "valid_from" in limits:
        outside |= raw < limits["valid_from"]
    if "valid_to" in limits:
        outside |= raw > limits["valid_to"]
    raw = np.where(outside, np.nan, raw)
    missing = np.isnan(raw)
    fill = _fill_value(spec, raw, missing, rows, training)
    filled = np.where(missing, 0.0 if fill is None else fill, raw)
    if spec.role == "weight":
        if filled.min() < 0:
            worst = int(np.argmin(filled))
            problem = f"weight `{spec.name}` is {filled[worst]:g} at row {rows[worst].as_py():,}; weights start at 0"
            raise DataError(problem, "clean the column")
        transform, values, stored, note = Transform(), filled, "float32", "weight of each row"
    else:
        transform = _fit(spec, advised, filled[training])
        values = transforms.apply(transform, filled)
        if limits and fill is not None:
            transform = replace(transform, constants={**transform.constants, **limits, "stand_in": fill})
        # A row that was filled with the mean is 0 or 1e-17 after a z-score, as the sums were rounded: that is no loss.
        noise = missing & (np.abs(values.reshape(len(raw), -1)) < FLOAT16.smallest_normal).all(axis=1)
        loss = float16_loss(values[training & ~noise])
        stored = spec.dtype if spec.dtype != "auto" else ("float16" if loss.survives else "float32")
        note = f"{transform.kind}{advice}, stored as {stored} (as float16: {loss})"
    if outside.any():
        note += f", {outside.sum():,} outside the valid range"
    if missing.any():
        note += f", {missing.mean():.1%} missing"
    feature = Feature(
        name=spec.name,
        kind="numeric",
        role=spec.role,
        source_dtype="double",
        stored_dtype=stored,
        width=transforms.width(transform.kind),
        transform=transform,
        missing=spec.missing_rule,
        missing_value=fill,
        window_us=None if spec.past is None else spec.past.window_us,
        delay_us=None if spec.past is None else spec.past.delay_us,
    )
    return feature, values, note


def _fill_value(spec: FeatureSpec, raw: Float64, missing: Mask, rows: pa.ChunkedArray, training: Mask) -> float | None:
    if spec.missing_rule == "constant":
        return spec.missing_value
    if spec.missing_rule == "refuse":
        if missing.any():
            first = rows[int(np.argmax(missing))].as_py()
            problem = (
                f"feature `{spec.name}` is missing in {missing.sum():,} of {len(raw):,} rows, first in row {first:,}"
            )
            raise DataError(problem, "fill the column, or use `missing: mean`")
        return None
    present = raw[training & ~missing]
    if not present.size:
        problem = (
            f"feature `{spec.name}` has no value in {training.sum():,} training rows, so it has no {spec.missing_rule}"
        )
        raise DataError(problem, "drop the feature, or use `missing: constant`")
    return float(np.median(present) if spec.missing_rule == "median" else present.mean())


def _fit(spec: FeatureSpec, kind: TransformKind, values: Float64) -> Transform:
    try:
        return transforms.fit(kind, values)
    except DataError as error:
        raise DataError(f"feature `{spec.name}`: {error.problem}", error.hint) from error
