"""A schema for a table that comes without one."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.store.layout import KEYS
from lightning_mp.data.store.row_block import KEY_PREFIX
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import DataError
from lightning_mp.schema import Feature, FeatureSchema


def describe(
    table: pa.Table, dtype_mapping: Mapping[str, str]
) -> tuple[FeatureSchema, pa.Table, dict[str, Vocabulary]]:
    """A schema for a table that comes without one, and the table encoded by it.

    Floating columns are numeric features, lists of numbers are vectors as wide as their first list. Text, integers
    and booleans are categories with a vocabulary over all rows; an integer or boolean column that `dtype_mapping`
    names is a number. Key columns such as `@row` are no features. Numbers keep the type they have, float64 becomes
    float32.

    Args:
        table: Rows without nulls.
        dtype_mapping: Stored types by column.

    Returns:
        The schema, the table with vocabulary rows in place of categories, and the vocabularies by feature.

    Raises:
        DataError: A column's type has no place in a store.
    """
    features: list[Feature] = []
    vocabularies: dict[str, Vocabulary] = {}
    keys = {KEY_PREFIX + name for name in KEYS}
    for name in table.column_names:
        if name in keys:
            continue
        column, kind = table.column(name), table.schema.field(name).type
        if _is_list(kind):
            widths = pc.list_value_length(column.slice(0, 1)).to_pylist()
            features.append(_numbers(name, kind.value_type, dtype_mapping, width=widths[0] if widths else 1))
        elif pa.types.is_floating(kind) or (name in dtype_mapping and _is_countable(kind)):
            features.append(_numbers(name, kind, dtype_mapping))
        elif _is_countable(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
            feature, codes, vocabularies[name] = _categories(name, column)
            features.append(feature)
            table = table.set_column(table.column_names.index(name), name, codes)
        else:
            raise DataError(f"column `{name}` holds {kind}, which has no place in a store", "cast it or drop it")
    return FeatureSchema(features=tuple(features)), table, vocabularies


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_countable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _numbers(name: str, kind: pa.DataType, dtype_mapping: Mapping[str, str], width: int | None = None) -> Feature:
    stored = dtype_mapping.get(name, dtype_mapping.get("*", "float16" if pa.types.is_float16(kind) else "float32"))
    return Feature(
        name=name,
        kind="numeric" if width is None else "vector",
        role="context",
        source_dtype=str(kind),
        stored_dtype=stored,
        width=1 if width is None else width,
        missing="refuse",
    )


def _categories(name: str, column: pa.ChunkedArray) -> tuple[Feature, pa.Array, Vocabulary]:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8()).cast(pa.int64())
    values = column.to_numpy()
    vocabulary = Vocabulary.fit(values)
    feature = Feature(
        name=name,
        kind="categorical",
        role="context",
        source_dtype="int64" if pa.types.is_integer(column.type) else "string",
        stored_dtype="int32",
        vocabulary_size=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
    )
    return feature, pa.array(vocabulary.encode(values)), vocabulary
