"""How a schema's features lie in a store's files: grouped by type into row-major matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from lightning_mp.schema import Feature, FeatureSchema, Kind, columns

GroupName = Literal["ids", "multi", "history", "dense16", "dense32", "labels", "weight", "keys"]

KEYS: Final = ("time", "row", "user", "item")
"""Columns of the `keys` group, int64: UTC microseconds, row of the source log, user code, item code."""

LISTS: Final[dict[str, Kind]] = {"multi": "multi_categorical", "history": "sequence"}
"""Groups of lists of vocabulary rows, padded with 0, and the kind of their features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One matrix of a shard: a non-null Arrow column of type FixedSizeList, so row-major in memory.

    Args:
        name: The Arrow column's name.
        dtype: NumPy's name of the elements' type.
        columns: One name a matrix column.
    """

    name: GroupName
    dtype: str
    columns: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return len(self.columns)


def features_of(schema: FeatureSchema, name: GroupName) -> tuple[Feature, ...]:
    """Features whose values stand in this group, in schema order; none for `keys`."""
    if name in ("ids", "multi", "history"):
        return schema.ids if name == "ids" else schema.of_kind(LISTS[name])
    if name == "dense16":
        return tuple(f for f in schema.dense if f.stored_dtype == "float16")
    if name == "dense32":
        return tuple(f for f in schema.dense if f.stored_dtype != "float16")
    if name == "labels":
        return schema.labels
    return tuple(f for f in schema.features if f.role == name)


def layout(schema: FeatureSchema) -> tuple[Group, ...]:
    """The groups that a store of this schema has; empty ones are left out.

    Example:
        >>> price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16")
        >>> [(group.name, group.dtype, group.columns) for group in layout(FeatureSchema(features=(price,)))]
        [('dense16', 'float16', ('price',)), ('keys', 'int64', ('time', 'row', 'user', 'item'))]
    """
    dtypes: dict[GroupName, str] = {
        "ids": "int32",
        "multi": "int32",
        "history": "int32",
        "dense16": "float16",
        "dense32": "float32",
        "labels": "float32",
        "weight": "float32",
    }
    groups = [
        Group(name=name, dtype=dtype, columns=tuple(columns(features_of(schema, name))))
        for name, dtype in dtypes.items()
        if features_of(schema, name)
    ]
    return (*groups, Group(name="keys", dtype="int64", columns=KEYS))


def dense_positions(schema: FeatureSchema, dtype: str) -> list[int]:
    """Columns of a batch's `dense` that come from `dense16` or `dense32`, in the order they stand there.

    Example:
        >>> make = lambda name, dtype: Feature(name=name, kind="numeric", role="item", source_dtype="double",
        ...                                    stored_dtype=dtype)
        >>> schema = FeatureSchema(features=(make("a", "float32"), make("b", "float16"), make("c", "float32")))
        >>> dense_positions(schema, "float32"), dense_positions(schema, "float16")
        ([0, 2], [1])
    """
    positions: list[int] = []
    at = 0
    for feature in schema.dense:
        if (feature.stored_dtype == "float16") == (dtype == "float16"):
            positions += range(at, at + feature.width)
        at += feature.width
    return positions
