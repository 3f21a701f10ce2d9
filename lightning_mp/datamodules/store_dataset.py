"""StoreDataset: batches of a store by one gather a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.data.store.layout import KEYS, GroupName, dense_positions
from lightning_mp.datamodules.row_order import Window

_Rows = Callable[[GroupName], Tensor]
_FIRST_KEY, _LAST_KEY = KEYS.index("row"), KEYS.index("item")  # `row`, `user`, `item` lie side by side


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
        self._columns = {dtype: torch.tensor(dense_positions(table.schema, dtype)) for dtype in ("float16", "float32")}
        self._tensors: dict[GroupName, Tensor] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": {}}

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
        first = int(rows[0]) if len(rows) else 0
        if len(rows) and int(rows[-1]) - first == len(rows) - 1 and bool((rows.diff() == 1).all()):
            span = slice(first, first + len(rows))  # neighbours: a copy is five times as fast as a gather
            return self._batch(lambda group: self._matrix(group)[span].clone())
        return self._batch(lambda group: self._matrix(group).index_select(0, rows))

    def mixed(self, windows: Iterable[Window]) -> Iterator[dict[str, Tensor]]:
        """Batches of block mode: each window's pieces are copied to one place, and the batches picked from there.

        Args:
            windows: Of a `RowOrder`.
        """
        buffers: dict[GroupName, Tensor] = {}
        for window in windows:
            filled: dict[GroupName, Tensor] = {}

            def rows_of(group: GroupName, places: Tensor, window: Window = window, filled: Any = filled) -> Tensor:
                if group not in filled:
                    filled[group] = self._window(group, window, buffers)
                return filled[group].index_select(0, places)  # type: ignore[no-any-return]

            for places in window.batches:
                yield self._batch(lambda group, places=places, rows_of=rows_of: rows_of(group, places))  # type: ignore[misc]

    def _window(self, group: GroupName, window: Window, buffers: dict[GroupName, Tensor]) -> Tensor:
        matrix = self._matrix(group)
        size = sum(end - first for first, end in window.pieces)
        if group not in buffers or len(buffers[group]) < size:
            buffers[group] = torch.empty(size, matrix.shape[1], dtype=matrix.dtype)
        at = 0
        for first, end in window.pieces:
            buffers[group][at : at + end - first].copy_(matrix[first:end])
            at += end - first
        return buffers[group][:size]

    def _batch(self, rows: _Rows) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = {}
        schema = self.table.schema
        if schema.ids:
            batch["ids"] = rows("ids")
        if schema.dense:
            batch["dense"] = self._dense(rows)
        if schema.labels:
            labels = rows("labels")
            batch["labels"] = labels.squeeze(1) if labels.shape[1] == 1 else labels
        if self.table.weight is not None:
            batch["weight"] = rows("weight").squeeze(1)
        batch["row"], batch["group"], *item = rows("keys").unbind(1)
        if item:
            batch["target"] = item[0]
        return batch

    def _dense(self, rows: _Rows) -> Tensor:
        half, single = self._columns["float16"], self._columns["float32"]
        if not len(single):
            return rows("dense16")
        if not len(half):
            return rows("dense32")
        narrow, wide = rows("dense16"), rows("dense32")
        dense = torch.empty(len(wide), len(half) + len(single))
        dense[:, half] = narrow.float()
        dense[:, single] = wide
        return dense

    def _matrix(self, group: GroupName) -> Tensor:
        if group not in self._tensors:
            matrix = torch.from_numpy(self.table.group(group))
            if group == "keys":
                matrix = matrix[:, _FIRST_KEY : _LAST_KEY + self.with_items]
            self._tensors[group] = matrix
        return self._tensors[group]
