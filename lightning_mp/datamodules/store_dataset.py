"""StoreDataset: batches of a store by one gather a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.data.store.layout import KEYS, GroupName, dense_positions


class StoreDataset(Dataset[dict[str, Tensor]]):
    """Batches of a store by one gather a matrix: `dataset[indices]` with a tensor of row numbers gives a whole batch.

    It holds the store's path and maps the file on first use in each process, so it costs a worker nothing to receive.

    Args:
        table: One split of a store.
        with_items: Add `target`, the code of each row's item, which predictions are written with.

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
        self._columns = {dtype: torch.tensor(dense_positions(table.schema, dtype)) for dtype in ("float16", "float32")}
        self._tensors: dict[GroupName, Tensor] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tensors": {}}

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
        batch: dict[str, Tensor] = {}
        schema = self.table.schema
        if schema.ids:
            batch["ids"] = self._gather("ids", rows)
        if schema.dense:
            batch["dense"] = self._dense(rows)
        if schema.labels:
            labels = self._gather("labels", rows)
            batch["labels"] = labels.squeeze(1) if labels.shape[1] == 1 else labels
        if self.table.weight is not None:
            batch["weight"] = self._gather("weight", rows).squeeze(1)
        keys = dict(zip(KEYS, self._gather("keys", rows).unbind(1), strict=True))
        batch["group"], batch["row"] = keys["user"], keys["row"]
        if self.with_items:
            batch["target"] = keys["item"]
        return batch

    def _dense(self, rows: Tensor) -> Tensor:
        half, single = self._columns["float16"], self._columns["float32"]
        if not len(single):
            return self._gather("dense16", rows)
        if not len(half):
            return self._gather("dense32", rows)
        dense = torch.empty(len(rows), len(half) + len(single))
        dense[:, half] = self._gather("dense16", rows).float()
        dense[:, single] = self._gather("dense32", rows)
        return dense

    def _gather(self, group: GroupName, rows: Tensor) -> Tensor:
        if group not in self._tensors:
            self._tensors[group] = torch.from_numpy(np.asarray(self.table.group(group)))
        return self._tensors[group].index_select(0, rows)
