"""Shards as Parquet files: one column a feature, float16 kept, every page with a checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lightning_mp.data.store.layout import KEYS, Group, features_of, layout
from lightning_mp.data.store.matrices import fixed_size_lists
from lightning_mp.data.store.row_block import KEY_PREFIX
from lightning_mp.errors import ArtifactError
from lightning_mp.schema import FeatureSchema

_ROW_GROUP = 1 << 17


def write_parquet_shard(path: Path, matrices: dict[str, NDArray[Any]], schema: FeatureSchema) -> None:
    """Write the matrices of a shard as columns that any reader of Parquet knows by their features' names.

    Args:
        path: The file.
        matrices: By group.
        schema: As stored.
    """
    columns: dict[str, Any] = {}
    for group in layout(schema):
        at = 0
        for name, width in _columns(group, schema):
            part = np.ascontiguousarray(matrices[group.name][:, at : at + width])
            columns[name] = fixed_size_lists(part) if width > 1 else pa.array(part[:, 0])
            at += width
    table = pa.table(columns, schema=pa.schema([pa.field(n, c.type, nullable=False) for n, c in columns.items()]))
    pq.write_table(
        table, path, row_group_size=_ROW_GROUP, compression="zstd", use_dictionary=False, write_page_checksum=True
    )


def read_parquet_shard(path: Path, groups: tuple[Group, ...], schema: FeatureSchema) -> dict[str, NDArray[Any]]:
    """Read the matrices of a shard into memory; every page's checksum is compared.

    Args:
        path: The file.
        groups: The matrices wanted.
        schema: As stored.

    Raises:
        ArtifactError: A page was altered, or the columns are other ones.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows = file.metadata.num_rows
            matrices = {group.name: np.empty((rows, group.width), dtype=group.dtype) for group in groups}
            first = 0
            for number in range(file.num_row_groups):
                table = file.read_row_group(number)
                for group in groups:
                    at = 0
                    for name, width in _columns(group, schema):
                        column = table.column(name).combine_chunks()
                        values = column.flatten() if width > 1 else column
                        part = matrices[group.name][first : first + table.num_rows, at : at + width]
                        part[:] = values.to_numpy().reshape(-1, width)
                        at += width
                first += table.num_rows
    except (pa.ArrowInvalid, pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ArtifactError(f"`{path}` cannot be read as it was written: {error}", "write the store again") from error
    return matrices  # type: ignore[return-value]  # every group was filled or refused


def _columns(group: Group, schema: FeatureSchema) -> list[tuple[str, int]]:
    if group.name == "keys":
        return [(KEY_PREFIX + name, 1) for name in KEYS]
    return [(feature.name, feature.width) for feature in features_of(schema, group.name)]
