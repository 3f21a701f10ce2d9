"""A numeric feature: missing values filled, transform fitted, and stored in the smallest float that it survives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data import transforms
from lightning_mp.data.advised_transform import advised_transform
from lightning_mp.data.chosen_rows import chosen_rows
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.row_pieces import column_array, row_pieces
from lightning_mp.data.scratch_array import scratch_array
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
    raw: Float64 = column_array(column, np.float64)
    advised, limits, advice = advised_transform(spec, chosen_rows(raw, training))
    outside = _clear_outside(raw, limits)
    missing = np.isnan(raw, out=scratch_array(len(raw), np.bool_))
    absent = int(np.count_nonzero(missing))
    fill = _fill_value(spec, raw, missing, rows, training)
    filled = raw
    for piece in row_pieces(len(raw)):
        filled[piece][missing[piece]] = 0.0 if fill is None else fill
    if spec.role == "weight":
        if filled.min() < 0:
            worst = int(np.argmin(filled))
            problem = f"weight `{spec.name}` is {filled[worst]:g} at row {rows[worst].as_py():,}; weights start at 0"
            raise DataError(problem, "clean the column")
        transform, values, stored, note = Transform(), filled, "float32", "weight of each row"
    else:
        transform = _fit(spec, advised, chosen_rows(filled, training))
        values = _applied(transform, filled)
        if limits and fill is not None:
            transform = replace(transform, constants={**transform.constants, **limits, "stand_in": fill})
        # A row that was filled with the mean is 0 or 1e-17 after a z-score, as the sums were rounded: that is no loss.
        loss = float16_loss(chosen_rows(values, _without_noise(values, missing, training)))
        stored = spec.dtype if spec.dtype != "auto" else ("float16" if loss.survives else "float32")
        note = f"{transform.kind}{advice}, stored as {stored} (as float16: {loss})"
    if outside:
        note += f", {outside:,} outside the valid range"
    if absent:
        note += f", {absent / len(raw):.1%} missing"
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


def _clear_outside(raw: Float64, limits: dict[str, float]) -> int:
    """Make what lies outside the valid range missing, and count it."""
    outside = 0
    for piece in row_pieces(len(raw)) if limits else ():
        beyond = (raw[piece] < limits.get("valid_from", -np.inf)) | (raw[piece] > limits.get("valid_to", np.inf))
        raw[piece][beyond] = np.nan
        outside += int(np.count_nonzero(beyond))
    return outside


def _applied(transform: Transform, filled: Float64) -> Float64:
    width = transforms.width(transform.kind)
    values = scratch_array(len(filled) if width == 1 else (len(filled), width), np.float64)
    for piece in row_pieces(len(filled)):
        values[piece] = transforms.apply(transform, filled[piece])
    return values


def _without_noise(values: Float64, missing: Mask, training: Mask) -> Mask:
    """Training rows, those left out that were filled and came out as good as 0."""
    kept = scratch_array(len(missing), np.bool_)
    for piece in row_pieces(len(missing)):
        sizes = np.abs(values[piece].reshape(piece.stop - piece.start, -1))
        kept[piece] = training[piece] & ~(missing[piece] & (sizes < FLOAT16.smallest_normal).all(axis=1))
    return kept


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
    present = chosen_rows(raw, training & ~missing)
    if not present.size:
        problem = (
            f"feature `{spec.name}` has no value in {training.sum():,} training rows, so it has no {spec.missing_rule}"
        )
        raise DataError(problem, "drop the feature, or use `missing: constant`")
    return float(np.median(present, overwrite_input=True) if spec.missing_rule == "median" else present.mean())


def _fit(spec: FeatureSpec, kind: TransformKind, values: Float64) -> Transform:
    try:
        return transforms.fit(kind, values)
    except DataError as error:
        raise DataError(f"feature `{spec.name}`: {error.problem}", error.hint) from error
