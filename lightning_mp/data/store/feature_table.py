"""One split of a store as NumPy matrices over mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.artifacts import check_file
from lightning_mp.data.store.arrow_shard import read_arrow_shard
from lightning_mp.data.store.layout import KEYS, LISTS, Group, GroupName, dense_positions
from lightning_mp.data.store.parquet_shard import read_parquet_shard
from lightning_mp.errors import ArtifactError
from lightning_mp.schema import FeatureSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A shard where it lies.

    Args:
        path: The file.
        rows: Its rows.
        size: Its size in bytes.
    """

    path: Path
    rows: int
    size: int


class FeatureTable:
    """One split of a store as NumPy matrices over mapped files.

    Nothing is read before the first matrix is asked for. Files are mapped copy-on-write: matrices are writable, and
    what is written to them stays in this process. A pickle holds the path, not the rows. Parquet shards cannot be
    mapped: they are decoded into memory.

    Where a split lies in several shards (after `FeatureStore.append`), `ids`, `dense` and the others are put together
    in memory on first use; `shards` gives each as it lies.

    Args:
        files: The shards.
        schema: Of the store.
        groups: The matrices of the shards.
        memory_map: Map the files; otherwise read them into memory whole.

    Raises:
        ArtifactError: On first use: a file is missing, cut short, or holds other columns than its manifest says.
    """

    def __init__(
        self, files: tuple[ShardFile, ...], *, schema: FeatureSchema, groups: tuple[Group, ...], memory_map: bool = True
    ) -> None:
        self.files = files
        self.schema = schema
        self._groups = groups
        self._rows = sum(file.rows for file in files)
        self._memory_map = memory_map
        self._matrices: list[dict[str, NDArray[Any]]] | None = None
        self._joined: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        # A map cannot travel to another process, and its bytes should not: the other process maps the file itself.
        return {**self.__dict__, "_matrices": None, "_joined": {}}

    @property
    def mapped(self) -> bool:
        """Whether the files are mapped: matrices cost no memory of their own, a copy of the table maps them anew."""
        return self._memory_map and all(file.path.suffix != ".parquet" for file in self.files)

    def check(self) -> None:
        """Compare the files' sizes with the manifest's.

        Raises:
            ArtifactError: One is missing or was cut short.
        """
        for file in self.files:
            check_file(file.path, size=file.size)

    def shards(self, name: GroupName) -> list[NDArray[Any]]:
        """The matrix of one group in each shard, (rows, width), without a copy."""
        if self._matrices is None:
            self.check()
            self._matrices = [self._read(file) for file in self.files]
        if not any(group.name == name for group in self._groups):
            dtype = {"dense16": np.float16}.get(name, np.int32 if name in ("ids", *LISTS) else np.float32)
            return [np.empty((file.rows, 0), dtype=dtype) for file in self.files]
        return [matrices[name] for matrices in self._matrices]

    def group(self, name: GroupName) -> NDArray[Any]:
        """The matrix of one group, (N, width), without a copy where there is one shard; width 0 without such a one."""
        shards = self.shards(name)
        if len(shards) == 1:
            return shards[0]
        if name not in self._joined:
            self._joined[name] = np.concatenate(shards)
        return self._joined[name]

    def _read(self, file: ShardFile) -> dict[str, NDArray[Any]]:
        if file.path.suffix != ".parquet":
            return read_arrow_shard(file.path, self._groups, file.rows, memory_map=self._memory_map)
        matrices = read_parquet_shard(file.path, self._groups, self.schema)
        if len(matrices["keys"]) != file.rows:
            found = len(matrices["keys"])
            problem = f"`{file.path}` has {found:,} rows, its manifest says {file.rows:,}"
            raise ArtifactError(problem, "write the store again")
        return matrices

    @property
    def ids(self) -> NDArray[np.int32]:
        """Vocabulary rows, (N, F) int32, in schema order."""
        return self.group("ids")

    @property
    def history(self) -> NDArray[np.int32]:
        """Vocabulary rows of the items before each row, (N, L) int32, the latest last, padded with 0 in front."""
        return self.group("history")

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
