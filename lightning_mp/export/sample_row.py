"""A row of a bundle that can be asked for, as somebody would write it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf, isnan
from typing import Any, Final

from numpy.typing import NDArray

from lightning_mp.bundle import SAMPLES, Bundle
from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT
from lightning_mp.export.plain_number import plain_number
from lightning_mp.export.sample_inputs import read_samples
from lightning_mp.manifest import RawInput
from lightning_mp.schema import Feature

_PLAIN: Final = {"BYTES": "a", "INT64": 0, "FP64": 0.0}
Row = dict[str, Any]


def sample_row(bundle: Bundle) -> Row:
    """A real row that the bundle keeps, or one of plain values.

    Numbers are as short as they can be without another score (`plain_number`); missing values are left out, and
    indicators that say what the row says already. Of the rows kept it is the first for which that leaves no indicator
    and no infinity, else the first.

    Args:
        bundle: With a `pipeline.onnx`.
    """
    inputs = bundle.manifest.inputs
    if SAMPLES not in bundle.manifest.files:
        plain = {spec.name: (_PLAIN[spec.datatype], spec.shape) for spec in inputs}
        return {name: [value] * abs(shape[0]) if shape else value for name, (value, shape) in plain.items()}
    columns, _ = read_samples(bundle.path / SAMPLES, inputs)
    features = {feature.name: feature for feature in bundle.manifest.schema.features}
    derived = {spec.name for spec in inputs if spec.derived_from is not None}
    rows = (_row(columns, inputs, features, place) for place in range(min(map(len, columns.values()), default=0)))
    first: Row | None = None
    for row in rows:
        first = row if first is None else first
        if derived.isdisjoint(row) and not any(_infinite(value) for value in row.values()):
            return row
    return first or {}


def _row(
    columns: Mapping[str, NDArray[Any]], inputs: tuple[RawInput, ...], features: Mapping[str, Feature], place: int
) -> Row:
    row: Row = {}
    for spec in inputs:
        value = columns[spec.name][place : place + 1].tolist()[0]
        if spec.is_list:
            row[spec.name] = [entry for entry in value if not _missing(entry)]
        elif spec.shape or not _missing(value):
            row[spec.name] = _plain(value, features.get(spec.name))
    for spec in inputs:
        if spec.derived_from is not None and row.get(spec.name) == float(spec.derived_from not in row):
            del row[spec.name]
    return {name: value for name, value in row.items() if not (isinstance(value, list) and any(map(_is_nan, value)))}


def _plain(value: Any, feature: Feature | None) -> Any:
    if isinstance(value, list):
        return [_plain(entry, feature) for entry in value]
    numeric = feature is not None and feature.kind in ("numeric", "vector")
    return plain_number(feature, value) if numeric and isinstance(value, float) and feature is not None else value


def _missing(value: Any) -> bool:
    return _is_nan(value) or (not isinstance(value, float) and value in (MISSING_TEXT, MISSING_INTEGER))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _infinite(value: Any) -> bool:
    return any(map(_infinite, value)) if isinstance(value, list) else isinstance(value, float) and isinf(value)
