"""Arrow columns to the matrices of a store, with every loss on the way named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lightning_mp.data.store.layout import KEYS
from lightning_mp.data.store.row_block import KEY_PREFIX, RowBlock
from lightning_mp.errors import DataError
from lightning_mp.float_formats import FLOAT16
from lightning_mp.schema import Feature


def is_float16(block: RowBlock, feature: Feature) -> bool:
    """Whether the column holds float16 already, plain or in lists."""
    column = block.table.schema.field(feature.name).type if feature.name in block.table.column_names else pa.null()
    return bool(pa.types.is_float16(column.value_type if _is_list(column) else column))


def float16_values(block: RowBlock, feature: Feature) -> NDArray[np.float16]:
    """A float16 column bit for bit, NaN payloads included.

    Args:
        block: The rows.
        feature: What the column is.

    Returns:
        Shape (N, `feature.width`).

    Raises:
        DataError: As for `float32_values`.
    """
    values = _numbers(block, feature)
    _refuse_nonfinite(block, values, feature)
    return values.astype(np.float16, copy=False)


def float32_values(block: RowBlock, feature: Feature) -> NDArray[np.float32]:
    """One dense, label or weight column as float32.

    Args:
        block: The rows.
        feature: What the column is; lists of `feature.width` numbers for a `vector`.

    Returns:
        Shape (N, `feature.width`).

    Raises:
        DataError: The column is missing, holds a null, a NaN, an infinity, a list of another length, or a number
            beyond float32.
    """
    wide = _numbers(block, feature)
    _refuse_nonfinite(block, wide, feature)
    with np.errstate(over="ignore"):
        values = wide.astype(np.float32)
    block.refuse(
        ~np.isfinite(values) & np.isfinite(wide),
        wide,
        feature,
        what="is beyond float32's largest, 3.4028235e+38",
        hint="scale the column",
    )
    return values


def overflow(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where a cast to float16 would make infinity of a number: from 65520 on, half a step above the largest, 65504.

    Arrow's `cast(safe=True)` does not tell: it turns 70000 into infinity without an error.
    """
    return np.isfinite(values) & (np.abs(values) >= np.float32(FLOAT16.overflow_from))


def refuse_overflow(block: RowBlock, values: NDArray[np.float32], feature: Feature) -> None:
    """Refuse a column that float16 cannot hold.

    Raises:
        DataError: A value is beyond float16; feature, value, limit and row are named.
    """
    what = f"is beyond float16's largest, {FLOAT16.largest:g}"
    hint = f"store `{feature.name}` as float32, transform it, or write with on_overflow='float32' or 'clip'"
    block.refuse(overflow(values), values, feature, what=what, hint=hint)


def id_values(block: RowBlock, feature: Feature) -> NDArray[np.int32]:
    """A column of vocabulary rows, (N, `feature.width`); lists for a width above 1.

    Raises:
        DataError: It holds no integers, one outside its vocabulary, or a list of another length.
    """
    column = _flat(block, _column(block, feature.name), feature)
    if not pa.types.is_integer(column.type):
        raise DataError(
            f"feature `{feature.name}` holds {column.type}, vocabulary rows are integers", "encode it first"
        )
    values: NDArray[np.int64] = column.to_numpy().astype(np.int64).reshape(block.table.num_rows, feature.width)
    limit = feature.vocabulary_size or 0
    what, hint = f"is outside its vocabulary of {limit:,} rows (0 to {limit - 1:,})", "encode it with its vocabulary"
    block.refuse((values < 0) | (values >= limit), values, feature, what=what, hint=hint)
    return values.astype(np.int32)


def key_values(block: RowBlock) -> NDArray[np.int64]:
    """The key columns, (N, 4); the places in the split stand in for rows of the source, -1 for users and items.

    Raises:
        DataError: A key column holds no integers, or a null.
    """
    keys = np.empty((block.table.num_rows, len(KEYS)), dtype=np.int64)
    for index, name in enumerate(KEYS):
        if KEY_PREFIX + name in block.table.column_names:
            column = _column(block, KEY_PREFIX + name)
            if not pa.types.is_integer(column.type):
                problem = f"key column `{KEY_PREFIX + name}` holds {column.type}, it must hold int64"
                raise DataError(problem, "cast it to int64")
            keys[:, index] = column.to_numpy()
        elif name == "row":
            keys[:, index] = block.numbered_from + block.first + np.arange(len(keys))
        else:
            keys[:, index] = 0 if name == "time" else -1
    return keys


def fixed_size_lists(values: NDArray[Any]) -> pa.FixedSizeListArray:
    """A C-contiguous matrix as one non-null Arrow column, without a copy."""
    kind = pa.list_(pa.field("item", pa.from_numpy_dtype(values.dtype), nullable=False), values.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)


def _refuse_nonfinite(block: RowBlock, values: NDArray[Any], feature: Feature) -> None:
    if not block.keep_nonfinite:
        hint = "fill it in or drop the row, or write with on_nonfinite='keep'"
        block.refuse(~np.isfinite(values), values, feature, what="is not a finite number", hint=hint)


def _numbers(block: RowBlock, feature: Feature) -> NDArray[Any]:
    column = _flat(block, _column(block, feature.name), feature)
    wide = np.asarray(column.to_numpy(), dtype=None if pa.types.is_floating(column.type) else np.float64)
    return wide.reshape(block.table.num_rows, feature.width)


def _flat(block: RowBlock, column: pa.ChunkedArray, feature: Feature) -> pa.ChunkedArray:
    """The numbers of lists one behind the other; a column of plain numbers as it is."""
    if _is_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if lengths not in ([], [feature.width]):
            odd = next(length for length in lengths if length != feature.width)
            raise DataError(
                f"feature `{feature.name}` ({block.split} rows) has a list of {odd} numbers, "
                f"its width is {feature.width}",
                "make every list the same length",
            )
        column = pc.list_flatten(column)
        if column.null_count:
            problem = f"feature `{feature.name}` ({block.split} rows) has missing numbers in its lists"
            raise DataError(problem, "fill them in")
    return column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _column(block: RowBlock, name: str) -> pa.ChunkedArray:
    table, split = block.table, block.split
    if name not in table.column_names:
        raise DataError(
            f"the {split} rows have no column `{name}`; they have {', '.join(f'`{c}`' for c in table.column_names)}",
            "give one column a feature of the schema",
        )
    column = table.column(name)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise DataError(
            f"feature `{name}` is missing at row {block.source_row(row)} ({split} rows); a store holds no nulls",
            "fill it in first",
        )
    return column
