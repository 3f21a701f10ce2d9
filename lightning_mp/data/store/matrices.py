"""Arrow columns to the matrices of a store, with every loss on the way named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lightning_mp.data.store.layout import KEYS, Group, features_of
from lightning_mp.errors import DataError
from lightning_mp.float_formats import FLOAT16
from lightning_mp.schema import Feature, FeatureSchema

KEY_PREFIX = "@"
"""Of the key columns of a written table: `@time`, `@row`, `@user`, `@item`; a feature may be called `user`."""


def float32_values(table: pa.Table, feature: Feature, *, split: str) -> NDArray[np.float32]:
    """One dense, label or weight column as float32.

    Args:
        table: The rows of a split.
        feature: What the column is; lists of `feature.width` numbers for a `vector`.
        split: Its name, for the errors.

    Returns:
        Shape (N, `feature.width`).

    Raises:
        DataError: The column is missing, holds a null, a NaN, an infinity, a list of another length, or a number
            beyond float32.
    """
    column = _column(table, feature.name, split)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if lengths not in ([], [feature.width]):
            odd = next(length for length in lengths if length != feature.width)
            raise DataError(
                f"feature `{feature.name}` ({split} rows) has a list of {odd} numbers, its width is {feature.width}",
                "make every list the same length",
            )
        column = pc.list_flatten(column)
        if column.null_count:
            raise DataError(f"feature `{feature.name}` ({split} rows) has missing numbers in its lists", "fill them in")
    wide = np.asarray(column.to_numpy(), dtype=None if pa.types.is_floating(column.type) else np.float64)
    wide = wide.reshape(table.num_rows, feature.width)
    _refuse(
        ~np.isfinite(wide),
        wide,
        table=table,
        feature=feature,
        split=split,
        what="is not a finite number",
        hint="fill it in or drop the row",
    )
    with np.errstate(over="ignore"):
        values = wide.astype(np.float32)
    _refuse(
        ~np.isfinite(values),
        wide,
        table=table,
        feature=feature,
        split=split,
        what="is beyond float32's largest, 3.4028235e+38",
        hint="scale the column",
    )
    return values


def overflow(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where a cast to float16 would give infinity: from 65520 on, half a step above the largest, 65504.

    Arrow's `cast(safe=True)` does not tell: it turns 70000 into infinity without an error.
    """
    return np.abs(values) >= np.float32(FLOAT16.overflow_from)


def refuse_overflow(values: NDArray[np.float32], table: pa.Table, feature: Feature, *, split: str) -> None:
    """Refuse a column that float16 cannot hold.

    Raises:
        DataError: A value is beyond float16; feature, value, limit and row are named.
    """
    what = f"is beyond float16's largest, {FLOAT16.largest:g}"
    hint = f"store `{feature.name}` as float32, transform it, or write with on_overflow='float32' or 'clip'"
    _refuse(overflow(values), values, table=table, feature=feature, split=split, what=what, hint=hint)


def matrix(
    table: pa.Table, schema: FeatureSchema, group: Group, order: NDArray[np.int64], *, split: str
) -> NDArray[Any]:
    """One group of a split, in the order the rows are written in.

    Dense numbers go float64 -> float32 -> float16, never directly, so that a serving graph can repeat them to the bit.

    Args:
        table: The rows of the split.
        schema: Of the store.
        group: Which matrix.
        order: Permutation of the rows, (N,).
        split: Name of the split, for the errors.

    Returns:
        Shape (N, `group.width`), C-contiguous.

    Raises:
        DataError: A value cannot be stored.
    """
    out = np.empty((table.num_rows, group.width), dtype=group.dtype)
    if group.name == "keys":
        for index, name in enumerate(KEYS):
            out[:, index] = _keys(table, name, split)[order]
        return out
    at = 0
    for feature in features_of(schema, group.name):
        if group.name == "ids":
            out[:, at] = _ids(table, feature, split)[order]
        else:
            values = float32_values(table, feature, split=split)
            if group.dtype == "float16":
                np.clip(values, -FLOAT16.largest, FLOAT16.largest, out=values)
            out[:, at : at + feature.width] = values[order]
        at += feature.width
    return out


def fixed_size_lists(values: NDArray[Any]) -> pa.FixedSizeListArray:
    """A C-contiguous matrix as one non-null Arrow column, without a copy."""
    kind = pa.list_(pa.field("item", pa.from_numpy_dtype(values.dtype), nullable=False), values.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)


def _ids(table: pa.Table, feature: Feature, split: str) -> NDArray[np.int64]:
    column = _column(table, feature.name, split)
    if not pa.types.is_integer(column.type):
        raise DataError(
            f"feature `{feature.name}` holds {column.type}, vocabulary rows are integers", "encode it first"
        )
    values: NDArray[np.int64] = column.to_numpy().astype(np.int64)
    limit = feature.vocabulary_size or 0
    what, hint = f"is outside its vocabulary of {limit:,} rows (0 to {limit - 1:,})", "encode it with its vocabulary"
    wrong = (values < 0) | (values >= limit)
    _refuse(wrong[:, None], values[:, None], table=table, feature=feature, split=split, what=what, hint=hint)
    return values


def _keys(table: pa.Table, name: str, split: str) -> NDArray[np.int64]:
    if KEY_PREFIX + name not in table.column_names:
        if name == "row":
            return np.arange(table.num_rows, dtype=np.int64)
        return np.full(table.num_rows, 0 if name == "time" else -1, dtype=np.int64)
    column = _column(table, KEY_PREFIX + name, split)
    if not pa.types.is_integer(column.type):
        raise DataError(f"key column `{KEY_PREFIX + name}` holds {column.type}, it must hold int64", "cast it to int64")
    keys: NDArray[np.int64] = column.to_numpy().astype(np.int64)
    return keys


def _column(table: pa.Table, name: str, split: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise DataError(
            f"the {split} rows have no column `{name}`; they have {', '.join(f'`{c}`' for c in table.column_names)}",
            "give one column a feature of the schema",
        )
    column = table.column(name)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise DataError(
            f"feature `{name}` is missing at row {_source_row(table, row)} ({split} rows); a store holds no nulls",
            "fill it in first",
        )
    return column


def _source_row(table: pa.Table, position: int) -> str:
    if KEY_PREFIX + "row" not in table.column_names:
        return f"{position:,}"
    return f"{table.column(KEY_PREFIX + 'row')[position].as_py():,} of the source"


def _refuse(
    wrong: NDArray[np.bool_],
    values: NDArray[Any],
    *,
    table: pa.Table,
    feature: Feature,
    split: str,
    what: str,
    hint: str,
) -> None:
    if not wrong.any():
        return
    first, column = (int(i) for i in np.argwhere(wrong)[0])
    where = f"row {_source_row(table, first)} ({split} rows)"
    name = feature.name if feature.width == 1 else f"{feature.name}[{column}]"
    more = int(wrong.sum()) - 1
    others = f", and {more:,} more" if more else ""
    raise DataError(f"feature `{name}` has {values[first, column]:.9g} at {where}{others}: it {what}", hint)
