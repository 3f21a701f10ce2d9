"""A file's column in the type we want it in: without loss, or marked row by row."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.rejects import positions
from lightning_mp.data.typed_text import Typed, to_bool, to_double, to_int64
from lightning_mp.errors import DataError

ColumnType = Literal["auto", "string", "int64", "double", "bool", "time"]

_EXACT_UNTIL: Final = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): 2**53}
_DOUBLE_DIGITS: Final = "has more digits than a float64 keeps"


def to_type(values: pa.Array, kind: ColumnType, *, column: str, decimal: str = ".") -> Typed:
    """Convert a column.

    Args:
        values: (N,) of the file's type.
        kind: The type wanted; `"auto"` is text for text, and int64 for integers, flags, and floats that hold nothing
            but integers they can tell apart.
        column: Its name, for errors.
        decimal: Decimal mark of numbers written as text.

    Returns:
        Values in that type and what did not fit.

    Raises:
        DataError: No value of the file's type can become one of the wanted type.
    """
    values = _plain(values)
    source = values.type
    if pa.types.is_null(source):
        return Typed(pa.nulls(len(values), type={"auto": pa.string(), "bool": pa.bool_()}.get(kind, kind)))
    if pa.types.is_string(source):
        return _from_text(values, kind, decimal)
    if not (pa.types.is_integer(source) or pa.types.is_floating(source) or pa.types.is_boolean(source)):
        wanted = "text or whole numbers" if kind == "auto" else kind
        raise DataError(f"column `{column}` holds {source}, {wanted} is needed", "cast the column in the file")
    if kind == "double":
        return _double(values)
    if kind == "bool":
        return _flags(values)
    whole = _whole(values)
    return Typed(whole.values.cast(pa.string()), whole.wrong) if kind == "string" else whole


def _plain(values: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = values.type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.string())
    if pa.types.is_decimal(kind):
        return values.cast(pa.float64())
    return values


def _from_text(values: pa.Array, kind: ColumnType, decimal: str) -> Typed:
    if kind == "double":
        return to_double(values, decimal)
    if kind == "int64":
        return to_int64(values)
    return to_bool(values) if kind == "bool" else Typed(values)


def _double(values: pa.Array) -> Typed:
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    numbers = values.cast(pa.float64(), safe=False)
    wrong = {}
    if pa.types.is_integer(values.type) and values.type.bit_width == 64:
        wrong[_DOUBLE_DIGITS] = ~positions(pc.equal(numbers.cast(values.type, safe=False), values)) & positions(
            pc.is_valid(values)
        )
    wrong["is not finite"] = positions(pc.is_inf(numbers))
    numbers = pc.if_else(pc.is_nan(numbers), None, numbers)
    return _without(numbers, wrong)


def _flags(values: pa.Array) -> Typed:
    if pa.types.is_boolean(values.type):
        return Typed(values)
    numbers = values.cast(pa.float64(), safe=False)
    numbers = pc.if_else(pc.is_nan(numbers), None, numbers)
    wrong = ~positions(pc.is_in(numbers, value_set=pa.array([0.0, 1.0]))) & positions(pc.is_valid(numbers))
    return _without(pc.equal(numbers, 1.0), {"is not a flag (0 or 1, true or false)": wrong})


def _whole(values: pa.Array) -> Typed:
    if pa.types.is_boolean(values.type):
        return Typed(values.cast(pa.int8()).cast(pa.int64()))
    if not pa.types.is_floating(values.type):
        if values.type != pa.uint64():
            return Typed(values.cast(pa.int64()))
        wrong = positions(pc.greater(values, pa.scalar(2**63 - 1, pa.uint64())))
        clear = pc.if_else(pa.array(wrong), None, values)
        return Typed(clear.cast(pa.int64()), _named({"is not an integer of 64 bits": wrong}))
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64)
    present = ~np.isnan(numbers)
    limit = _EXACT_UNTIL[values.type]
    beyond = present & (np.abs(np.where(present, numbers, 0)) >= limit)
    infinite = np.isinf(numbers)
    beyond &= ~infinite
    broken = present & ~beyond & (np.where(infinite | ~present, 0, numbers) % 1 != 0)
    wrong_by = {
        "is not finite": infinite,
        f"may have lost its last digits in float{values.type.bit_width}": beyond,
        "is not a whole number": broken,
    }
    good = present & ~infinite & ~beyond & ~broken
    whole = pa.array(np.where(good, numbers, 0).astype(np.int64), mask=~good)
    return Typed(whole, _named(wrong_by))


def _without(values: pa.Array, wrong: dict[str, np.ndarray]) -> Typed:
    bad = np.logical_or.reduce(list(wrong.values()))
    return Typed(pc.if_else(pa.array(bad), None, values) if bad.any() else values, _named(wrong))


def _named(wrong: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {reason: mask for reason, mask in wrong.items() if mask.any()}
