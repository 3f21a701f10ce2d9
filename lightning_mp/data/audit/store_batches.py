"""The columns of a feature store as an audit reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.data.time_split import PARTS
from lightning_mp.schema import columns

Read = Callable[[Sequence[int]], Iterator[tuple[list[pa.Array], int, str]]]


def store_source_parts(
    store: FeatureStore, batch_rows: int
) -> tuple[list[tuple[str, pa.DataType]], tuple[str, ...], int, Read]:
    """Fields, splits, rows, and a function that reads batches of the latest version of a store.

    Its numbers and labels are read, in their stored types and behind their transforms; vocabulary rows are not.

    Args:
        store: What is to be read.
        batch_rows: Rows a batch at most.
    """
    manifest = store.manifest
    schema = manifest.schema
    kinds = {"float16": pa.float16(), "float32": pa.float32()}
    dense = [name for feature in schema.dense for name in columns([feature])]
    types = [kinds[feature.stored_dtype] for feature in schema.dense for _ in range(feature.width)]
    labels = list(columns(schema.labels))
    fields = [*zip(dense, types, strict=True), *((name, pa.float32()) for name in labels)]
    splits = tuple(name for name in PARTS if name in manifest.splits)

    def read(places: Sequence[int]) -> Iterator[tuple[list[pa.Array], int, str]]:
        for split in splits:
            table = store.load(split, manifest.version)
            for start in range(0, len(table), batch_rows):
                rows = min(batch_rows, len(table) - start)
                yield [_column(table, place, start, rows, types) for place in places], rows, split

    return fields, splits, sum(manifest.rows(split) for split in splits), read


def _column(table: FeatureTable, place: int, start: int, rows: int, types: list[pa.DataType]) -> pa.Array:
    if place >= len(types):
        matrix: npt.NDArray[Any] = table.labels
        return pa.array(np.ascontiguousarray(matrix[start : start + rows, place - len(types)]))
    half = types[place] == pa.float16()
    matrix = table.group("dense16" if half else "dense32")
    within = sum((kind == pa.float16()) == half for kind in types[:place])
    return pa.array(np.ascontiguousarray(matrix[start : start + rows, within]))
