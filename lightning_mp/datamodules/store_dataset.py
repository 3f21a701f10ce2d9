"""StoreDataset: batches of a store by one gather a matrix."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.data.store.layout import KEYS, GroupName, dense_positions, layout
from lightning_mp.datamodules.row_order import Chunk

_Rows = Callable[[GroupName], Tensor]
_ROW, _USER, _ITEM = (KEYS.index(name) for name in ("row", "user", "item"))


class StoreDataset(Dataset[dict[str, Tensor]]):
    """Batches of a store by one gather a matrix: `dataset[indices]` with a tensor of row numbers gives a whole batch.

    It holds the store's path and maps the file on first use in each process, so it costs a worker nothing to receive.

    Args:
        table: One split of a store.
        with_items: Add `target`, the code of each row's item, which predictions are written with.

    Attributes:
        epoch: Counted from 0; a `ResumableLoader` sets it.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> from lightning_mp.data.store.feature_store import FeatureStore
        >>> store = FeatureStore(tempfile.mkdtemp())
        >>> _ = store.write(pa.table({"price": [1.0, 2.0, 3.0], "stars": [5.0, 4.0, 3.0]}))
        >>> dataset = StoreDataset(store.load())
        >>> {name: tuple(tensor.shape) for name, tensor in dataset[torch.tensor([0, 2])].items()}
        {'dense': (2, 2), 'group': (2,), 'row': (2,)}
    """

    def __init__(self, table: FeatureTable, *, with_items: bool = False) -> None:
        self.table = table
        self.with_items = with_items
        self.epoch = 0
        schema = table.schema
        self._half, self._single = (torch.tensor(dense_positions(schema, dtype)) for dtype in ("float16", "float32"))
        self._has = {group.name for group in layout(schema)}
        self._starts = [0, *accumulate(file.rows for file in table.files[:-1])]
        self._matrices: dict[GroupName, list[NDArray[Any]]] = {}
        self._buffers: dict[GroupName, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_matrices": {}, "_buffers": {}}

    def check(self) -> None:
        """Compare the sizes of the store's files with its manifest.

        Raises:
            ArtifactError: One is missing or was cut short.
        """
        self.table.check()

    @override
    def __getitem__(self, index: Tensor | int) -> dict[str, Tensor]:
        """One batch.

        Args:
            index: Row numbers of the split, (B,) int64; a single one gives a batch of one row.

        Returns:
            As far as the store has them: `ids` (B, F) int32, `dense` (B, D) float16 if every dense column is stored so,
            else float32, `labels` (B,) or (B, T) float32, `weight` (B,) float32; always `group`, the user's code, and
            `row`, the row of the source log, (B,) int64.
        """
        rows = torch.as_tensor(index).reshape(-1)
        return self._batch(lambda group: self._gathered(group, rows))

    def batches(self, chunk: Chunk) -> list[dict[str, Tensor]]:
        """The batches of a chunk of a `RowOrder`, read at once.

        Pieces of neighbouring rows are copied, several times as fast as a gather; in block mode they are copied to one
        place that stays in the processor's cache, and picked from there.
        """
        places = chunk.places
        if chunk.pieces is None:
            whole = self[chunk.rows()]
        else:
            pieces = chunk.pieces

            def read(group: GroupName) -> Tensor:
                rows = torch.from_numpy(self._copied(group, pieces, fresh=places is None))
                return rows if places is None else _in_runs(rows, places, chunk.run)

            whole = self._batch(read)
        if len(chunk.sizes) == 1:
            return [whole]
        ends = accumulate(chunk.sizes)
        parts = [(end - size, size) for size, end in zip(chunk.sizes, ends, strict=True)][chunk.skipped :]
        return [{name: tensor.narrow(0, *part) for name, tensor in whole.items()} for part in parts]

    def _copied(self, group: GroupName, pieces: tuple[tuple[int, int], ...], *, fresh: bool) -> NDArray[Any]:
        matrix = self._shards(group)[0]
        if fresh and len(pieces) == 1 and pieces[0][1] <= len(matrix):
            return matrix[slice(*pieces[0])].copy()
        size, at = sum(end - first for first, end in pieces), 0
        if group not in self._buffers or len(self._buffers[group]) < size:
            self._buffers[group] = np.empty((size, matrix.shape[1]), matrix.dtype)
        buffer = np.empty((size, matrix.shape[1]), matrix.dtype) if fresh else self._buffers[group][:size]
        for first, end in pieces:
            for shard, start in zip(self._shards(group), self._starts, strict=True):
                part = shard[max(first - start, 0) : max(end - start, 0)]
                buffer[at : at + len(part)] = part
                at += len(part)
        return buffer

    def _batch(self, rows: _Rows) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = {}
        if "ids" in self._has:
            batch["ids"] = rows("ids")
        if "dense16" in self._has:
            batch["dense"] = self._both(rows) if "dense32" in self._has else rows("dense16")
        elif "dense32" in self._has:
            batch["dense"] = rows("dense32")
        if "labels" in self._has:
            labels = rows("labels")
            batch["labels"] = labels.squeeze(1) if labels.shape[1] == 1 else labels
        if "weight" in self._has:
            batch["weight"] = rows("weight").squeeze(1)
        keys = rows("keys")
        batch["group"], batch["row"] = keys.select(1, _USER), keys.select(1, _ROW)
        if self.with_items:
            batch["target"] = keys.select(1, _ITEM)
        return batch

    def _both(self, rows: _Rows) -> Tensor:
        narrow, wide = rows("dense16"), rows("dense32")
        dense = torch.empty(len(wide), len(self._half) + len(self._single))
        dense[:, self._half] = narrow.float()
        dense[:, self._single] = wide
        return dense

    def _gathered(self, group: GroupName, rows: Tensor) -> Tensor:
        shards = self._shards(group)
        if len(shards) == 1:
            return torch.from_numpy(shards[0]).index_select(0, rows)
        matrix = torch.from_numpy(shards[0])
        gathered = torch.empty(len(rows), matrix.shape[1], dtype=matrix.dtype)
        shard_of = torch.bucketize(rows, torch.tensor(self._starts[1:]), right=True)
        for number, (shard, start) in enumerate(zip(shards, self._starts, strict=True)):
            places = (shard_of == number).nonzero().squeeze(1)
            gathered[places] = torch.from_numpy(shard).index_select(0, rows[places] - start)
        return gathered

    def _shards(self, group: GroupName) -> list[NDArray[Any]]:
        if group not in self._matrices:
            self._matrices[group] = self.table.shards(group)
        return self._matrices[group]


def _in_runs(rows: Tensor, places: Tensor, run: int) -> Tensor:
    full, mixed = len(places) * run, torch.empty_like(rows)
    torch.index_select(rows[:full].view(len(places), -1), 0, places, out=mixed[:full].view(len(places), -1))
    mixed[full:] = rows[full:]
    return mixed
