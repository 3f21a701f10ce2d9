"""One split of a store as NumPy matrices over a mapped file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lightning_mp.artifacts import check_file
from lightning_mp.data.store.layout import KEYS, Group, GroupName, dense_positions
from lightning_mp.errors import ArtifactError
from lightning_mp.schema import FeatureSchema


class FeatureTable:
    """One split of a store as NumPy matrices over a mapped file.

    Nothing is read before the first matrix is asked for. The file is mapped copy-on-write: matrices are writable,
    and what is written to them stays in this process. A pickle holds the path, not the rows.

    Args:
        file: The shard.
        schema: Of the store.
        groups: The matrices of the shard.
        rows: Its rows.
        size: Its size in bytes.
        memory_map: Map the file; otherwise read it into memory whole.

    Raises:
        ArtifactError: On first use: the file is missing, cut short, or holds other columns than its manifest says.
    """

    def __init__(
        self, file: Path, *, schema: FeatureSchema, groups: tuple[Group, ...], rows: int, size: int, memory_map: bool
    ) -> None:
        self.file = file
        self.schema = schema
        self._groups = groups
        self._rows = rows
        self._size = size
        self._memory_map = memory_map
        self._matrices: dict[str, NDArray[Any]] | None = None

    def __len__(self) -> int:
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        # A map cannot travel to another process, and its bytes should not: the other process maps the file itself.
        return {**self.__dict__, "_matrices": None}

    def check(self) -> None:
        """Compare the file's size with the manifest's.

        Raises:
            ArtifactError: It is missing or was cut short.
        """
        check_file(self.file, size=self._size)

    def group(self, name: GroupName) -> NDArray[Any]:
        """The matrix of one group, (N, width), without a copy; width 0 when the store has no such group."""
        if self._matrices is None:
            self.check()
            self._matrices = _matrices(self.file, self._groups, self._rows, memory_map=self._memory_map)
        if name not in self._matrices:
            return np.empty((self._rows, 0), dtype={"dense16": np.float16, "ids": np.int32}.get(name, np.float32))
        return self._matrices[name]

    @property
    def ids(self) -> NDArray[np.int32]:
        """Vocabulary rows, (N, F) int32, in schema order."""
        return self.group("ids")

    @property
    def dense(self) -> NDArray[np.float16] | NDArray[np.float32]:
        """Numbers, (N, D), in schema order: float16 when every column is stored so, else float32.

        No copy, except in a store that holds both types: then each access builds the whole matrix.
        """
        half, single = self.group("dense16"), self.group("dense32")
        if not half.shape[1]:
            return single
        if not single.shape[1]:
            return half
        dense = np.empty((self._rows, self.schema.dense_width), dtype=np.float32)
        dense[:, dense_positions(self.schema, "float16")] = half
        dense[:, dense_positions(self.schema, "float32")] = single
        return dense

    @property
    def labels(self) -> NDArray[np.float32]:
        """Labels, (N, T) float32, in schema order."""
        return self.group("labels")

    @property
    def weight(self) -> NDArray[np.float32] | None:
        """Weight of each row, (N,) float32, when the schema has one."""
        weight = self.group("weight")
        return weight[:, 0] if weight.shape[1] else None

    @property
    def time(self) -> NDArray[np.int64]:
        """When each row happened, (N,) int64 UTC microseconds."""
        return self._key("time")

    @property
    def row(self) -> NDArray[np.int64]:
        """Row of the source log that each row was made of, (N,) int64."""
        return self._key("row")

    @property
    def user(self) -> NDArray[np.int64]:
        """User of each row, (N,) int64: place in `FeatureStore.users()`, -1 when the store has none."""
        return self._key("user")

    @property
    def item(self) -> NDArray[np.int64]:
        """Item of each row, (N,) int64: place in `FeatureStore.items()`, -1 when the store has none."""
        return self._key("item")

    def _key(self, name: str) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.group("keys")[:, KEYS.index(name)]
        return column


def _matrices(file: Path, groups: tuple[Group, ...], rows: int, *, memory_map: bool) -> dict[str, NDArray[Any]]:
    with file.open("rb") as handle:
        # ACCESS_COPY: a read-only map dies on an in-place operation, a shared one changes the file.
        raw = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY) if memory_map else bytearray(handle.read())
    start = np.frombuffer(raw, dtype=np.uint8).ctypes.data
    try:
        reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(raw)))
        found = {field.name: field.type for field in reader.schema}
        wanted = {g.name: pa.list_(pa.field("item", arrow_type(g.dtype), nullable=False), g.width) for g in groups}
        if reader.num_record_batches != 1 or found != wanted:
            raise ArtifactError(f"`{file}` holds other columns than its manifest says", "write the store again")
        batch = reader.get_batch(0)
    except pa.ArrowInvalid as error:
        raise ArtifactError(f"`{file}` is not a readable Arrow file: {error}", "write the store again") from error
    if batch.num_rows != rows:
        raise ArtifactError(
            f"`{file}` has {batch.num_rows:,} rows, its manifest says {rows:,}", "write the store again"
        )
    matrices: dict[str, NDArray[Any]] = {}
    for group in groups:
        values = batch.column(group.name).values
        # Arrow's own view is read-only; the same bytes through the map are not.
        offset = values.buffers()[1].address - start if rows else 0
        flat = np.frombuffer(raw, dtype=group.dtype, count=rows * group.width, offset=offset)
        matrices[group.name] = flat.reshape(rows, group.width)
    return matrices


def arrow_type(dtype: str) -> pa.DataType:
    """Arrow's type of a NumPy dtype name."""
    return pa.from_numpy_dtype(np.dtype(dtype))
