"""Raw values of stored rows, and what training made of them: the plain NumPy twin of the exported encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data import transforms
from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT, Vocabulary
from lightning_mp.export.encoder_graph import LARGEST
from lightning_mp.export.missing_fills import NO_FILLS, MissingFills
from lightning_mp.export.raw_features import datatype, raw_inputs
from lightning_mp.export.raw_lists import decode_lists, stranger
from lightning_mp.schema import FeatureSchema

Columns = Mapping[str, NDArray[Any]]
_HOSTILE_LENGTH = 40


def decode_rows(
    schema: FeatureSchema,
    vocabularies: Mapping[str, Vocabulary],
    ids: NDArray[np.integer[Any]],
    dense: NDArray[np.floating[Any]],
    fills: MissingFills = NO_FILLS,
    *,
    lists: Mapping[str, NDArray[np.integer[Any]]] | None = None,
) -> dict[str, NDArray[Any]]:
    """Raw values that encode to these rows; a number may come back one rounding step beside the stored one.

    Args:
        schema: The features.
        vocabularies: Of every id and categorical feature, by name.
        ids: (N, F) vocabulary rows.
        dense: (N, D) transformed numbers.
        fills: What stands in for missing values beyond the schema.
        lists: `multi` (N, M, L) and `history` (N, L), where the schema has such features.

    Returns:
        For every input of `pipeline.onnx` an array of `str` objects, int64 or float64: (N,), (N, d) of a vector, or
        (N, width) of a list. Row 0 becomes the
        missing value; where that would be told or filled, a value that the vocabulary does not hold.
    """
    raw: dict[str, NDArray[Any]] = {}
    for column, feature in enumerate(schema.ids):
        text = datatype(feature) == "BYTES"
        values = vocabularies[feature.name].decode(ids[:, column])
        told = feature.name in fills.modes or feature.name in fills.indicators.values()
        missing = MISSING_TEXT if text else MISSING_INTEGER
        values = np.where(ids[:, column] == 0, stranger(vocabularies[feature.name], text) if told else missing, values)
        raw[feature.name] = values.astype(np.object_ if text else np.int64)
    column = 0
    for feature in schema.dense:
        wide = feature.kind == "vector" or transforms.width(feature.transform.kind) > 1
        stored = dense[:, column : column + feature.width] if wide else dense[:, column]
        with np.errstate(over="ignore"):  # what was clipped may come from beyond float64
            raw[feature.name] = transforms.invert(feature.transform, stored.astype(np.float64))
        column += feature.width
    return {**raw, **decode_lists(schema, vocabularies, lists or {})}


def encode_rows(
    schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], raw: Columns, fills: MissingFills = NO_FILLS
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Encode raw values as the store was written: this is what the exported encoder must repeat to the bit.

    Args:
        schema: The features.
        vocabularies: Of every id and categorical feature, by name.
        raw: One array a feature, as `decode_rows` gives them; those of lists are for `encode_lists`.
        fills: What stands in for missing values beyond the schema.

    Returns:
        `ids` (N, F) int64 and `dense` (N, D) float32.
    """
    rows = len(next(iter(raw.values())))
    ids = np.empty((rows, len(schema.ids)), dtype=np.int64)
    for column, feature in enumerate(schema.ids):
        ids[:, column] = vocabularies[feature.name].encode(raw[feature.name])
        if feature.name in fills.modes:
            mode = vocabularies[feature.name].encode([fills.modes[feature.name]])[0]  # type: ignore[arg-type]  # a key of the vocabulary, text or number
            ids[_missing(raw[feature.name]), column] = mode
    dense = np.empty((rows, schema.dense_width), dtype=np.float32)
    column = 0
    for feature in schema.dense:
        values = np.asarray(raw[feature.name], dtype=np.float64)
        if feature.missing_value is not None:
            values = np.where(np.isnan(values), feature.missing_value, values)
        if feature.name in fills.indicators:
            values = np.where(_missing(raw[fills.indicators[feature.name]]), 1.0, values)
        with np.errstate(over="ignore", under="ignore"):
            largest = LARGEST[feature.stored_dtype]
            values = np.clip(transforms.apply(feature.transform, values), -largest, largest)
            stored = values.astype(np.float32).astype(feature.stored_dtype)
        dense[:, column : column + feature.width] = stored.reshape(rows, feature.width)
        column += feature.width
    return ids, dense


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.array([value != value or value in (MISSING_TEXT, MISSING_INTEGER) for value in values.tolist()], np.bool_)  # noqa: PLR0124  # only NaN differs from itself


def hostile_rows(schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary]) -> dict[str, NDArray[Any]]:
    """Raw rows that a service will meet one day: missing, unknown, infinite, subnormal and huge values.

    Returns:
        As `decode_rows`, 16 rows; lists of up to 40 entries with gaps, and empty ones.
    """
    numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -(2.0**-25), 6e-8, 6.1e-5, 65504.0, 65520.0, -7e4, 1e300]
    raw: dict[str, NDArray[Any]] = {}
    for entry in raw_inputs(schema):
        if entry.datatype == "FP64":
            values: list[Any] = numbers
        else:
            known = vocabularies[entry.name].entries.tolist()[:4]
            text = entry.datatype == "BYTES"
            odd: list[Any] = ["", " ", "-1", "\N{PILE OF POO}", "a" * 300] if text else [MISSING_INTEGER, -1, 0, 2**62]
            values = [*odd, *known, *(f"{key} " if text else key ^ 1 for key in known)]
        dtype = {"BYTES": np.object_, "INT64": np.int64, "FP64": np.float64}[entry.datatype]
        width = _HOSTILE_LENGTH if entry.is_list else entry.shape[0] if entry.shape else 1
        flat: NDArray[Any] = np.array([values[place % len(values)] for place in range(16 * width)], dtype=dtype)
        if entry.is_list:
            flat.reshape(16, width)[:3] = MISSING_TEXT if entry.datatype == "BYTES" else MISSING_INTEGER
        raw[entry.name] = flat.reshape(16, *([width] if entry.shape else []))
    return raw
