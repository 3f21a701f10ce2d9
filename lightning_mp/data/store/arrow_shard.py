"""Shards as Arrow IPC files: mapped copy-on-write, a matrix a column."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lightning_mp.data.store.layout import Group
from lightning_mp.errors import ArtifactError

_AGAIN = "write the store again"


def read_arrow_shard(
    path: Path, groups: tuple[Group, ...], rows: int, *, memory_map: bool = True
) -> dict[str, NDArray[Any]]:
    """The matrices of a shard, without a copy.

    Args:
        path: The file; its size has been checked.
        groups: The matrices it has.
        rows: Its rows.
        memory_map: Map it; otherwise read it into memory whole.

    Raises:
        ArtifactError: It is no Arrow file, or holds other columns or rows than its manifest says.
    """
    with path.open("rb") as handle:
        # ACCESS_COPY: a read-only map dies on an in-place operation, a shared one changes the file.
        raw = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY) if memory_map else bytearray(handle.read())
    start = np.frombuffer(raw, dtype=np.uint8).ctypes.data
    try:
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(raw)))
        found = {field.name: field.type for field in reader.schema}
        wanted = {g.name: pa.list_(pa.field("item", _arrow_type(g.dtype), nullable=False), g.width) for g in groups}
        if reader.num_record_batches != 1 or found != wanted:
            raise ArtifactError(f"`{path}` holds other columns than its manifest says", _AGAIN)
        batch = reader.get_batch(0)
    except pa.ArrowInvalid as error:
        raise ArtifactError(f"`{path}` is not a readable Arrow file: {error}", _AGAIN) from error
    if batch.num_rows != rows:
        raise ArtifactError(f"`{path}` has {batch.num_rows:,} rows, its manifest says {rows:,}", _AGAIN)
    matrices: dict[str, NDArray[Any]] = {}
    for group in groups:
        values = batch.column(group.name).values
        # Arrow's own view is read-only; the same bytes through the map are not.
        offset = values.buffers()[1].address - start if rows else 0
        flat = np.frombuffer(raw, dtype=group.dtype, count=rows * group.width, offset=offset)
        matrices[group.name] = flat.reshape(rows, group.width)
    return matrices


def _arrow_type(dtype: str) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(dtype))
