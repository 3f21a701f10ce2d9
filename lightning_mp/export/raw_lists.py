"""Lists of raw values and their vocabulary rows: the plain Python twin of the lists in an exported encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.vocabulary import MISSING_INTEGER, MISSING_TEXT, Vocabulary
from lightning_mp.export.raw_features import HISTORY, LISTS, datatype
from lightning_mp.schema import Feature, FeatureSchema

Columns = Mapping[str, NDArray[Any]]


def encode_lists(
    schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], raw: Columns
) -> dict[str, NDArray[np.int64]]:
    """Encode lists, row by row: missing entries passed over, the first ones kept; of a sequence the last known ones.

    Args:
        schema: The features.
        vocabularies: Of every list, by name.
        raw: One array (N, any length) a list, padded anywhere with the missing value.

    Returns:
        `multi` (N, M, L), padded with 0 at the end, and `history` (N, L), padded in front, int64, as far as the schema
        has them.
    """
    found: dict[str, NDArray[np.int64]] = {}
    several = schema.of_kind("multi_categorical")
    if several:
        widest = max(feature.width for feature in several)
        parts = [_encoded(feature, vocabularies[feature.name], raw[feature.name], widest) for feature in several]
        found["multi"] = np.stack(parts, axis=1)
    for feature in schema.of_kind("sequence")[:1]:
        found[HISTORY] = _encoded(feature, vocabularies[feature.name], raw[feature.name], feature.width)
    return found


def lost_entries(schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], raw: Columns) -> NDArray[np.bool_]:
    """Whether a list holds an entry that its vocabulary does not, (N, lists)."""
    lists = schema.of_kind(*LISTS)
    ordered = [f for kind in LISTS for f in lists if f.kind == kind]
    rows = len(next(iter(raw.values())))
    found = np.zeros((rows, len(ordered)), dtype=np.bool_)
    for column, feature in enumerate(ordered):
        for row, values in enumerate(raw[feature.name].tolist()):
            found[row, column] = bool((vocabularies[feature.name].encode(_given(values)) == 0).any())
    return found


def decode_lists(
    schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary], encoded: Mapping[str, NDArray[np.integer[Any]]]
) -> dict[str, NDArray[Any]]:
    """Raw lists that encode to these rows.

    Args:
        schema: The features.
        vocabularies: Of every list, by name.
        encoded: `multi` (N, M, L) and `history` (N, L), as far as the schema has them.

    Returns:
        For every list an array (N, width) padded with the missing value as the rows are with 0. A 0 between entries,
        or on their other side, becomes a value that the vocabulary does not hold.
    """
    found: dict[str, NDArray[Any]] = {}
    for place, feature in enumerate(schema.of_kind("multi_categorical") if "multi" in encoded else ()):
        found[feature.name] = _decoded(feature, vocabularies[feature.name], encoded["multi"][:, place])
    for feature in schema.of_kind("sequence")[:1] if HISTORY in encoded else ():
        found[feature.name] = _decoded(feature, vocabularies[feature.name], encoded[HISTORY])
    return found


def stranger(vocabulary: Vocabulary, text: bool) -> str | int:
    """A value that a vocabulary does not hold, and that is not the missing one."""
    known = set(vocabulary.entries.tolist())
    if text:
        return next(word for word in ("?" * length for length in range(1, len(known) + 2)) if word not in known)
    return next(number for number in range(-1, -len(known) - 2, -1) if number not in known)


def _given(values: list[Any]) -> list[Any]:
    return [value for value in values if value not in (MISSING_TEXT, MISSING_INTEGER)]


def _encoded(feature: Feature, vocabulary: Vocabulary, raw: NDArray[Any], widest: int) -> NDArray[np.int64]:
    rows = np.zeros((len(raw), widest), dtype=np.int64)
    for row, values in enumerate(raw.tolist()):
        codes = vocabulary.encode(_given(values))
        if feature.kind == "sequence":
            codes = codes[codes > 0][-feature.width :]
            rows[row, widest - len(codes) :] = codes
        else:
            codes = codes[: feature.width]
            rows[row, : len(codes)] = codes
    return rows


def _decoded(feature: Feature, vocabulary: Vocabulary, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
    text = datatype(feature) == "BYTES"
    rows = rows[:, : feature.width]
    values = vocabulary.decode(rows.reshape(-1)).reshape(rows.shape)
    given = rows != 0 if feature.kind == "sequence" else np.flip(rows != 0, axis=1)
    empty = np.cumsum(given, axis=1) == 0  # nothing but zeros up to here
    empty = empty if feature.kind == "sequence" else np.flip(empty, axis=1)
    odd = np.where(empty, MISSING_TEXT if text else MISSING_INTEGER, stranger(vocabulary, text))
    values = np.where(rows == 0, odd, values)
    return values.astype(np.object_ if text else np.int64)
