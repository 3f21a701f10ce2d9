"""StoreDataset: batches of a store by one gather a matrix."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
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
from lightning_mp.datamodules.sampled_negatives import SampledNegatives
from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.batch_lists import batch_lists

_Rows = Callable[[GroupName], Tensor]
_ROW, _USER, _ITEM = (KEYS.index(name) for name in ("row", "user", "item"))


class StoreDataset(Dataset[dict[str, Tensor]]):
    """Batches of a store by one gather a matrix: `dataset[indices]` with a tensor of row numbers gives a whole batch.

    It holds the store's path and maps the file on first use in each process, so it costs a worker nothing to receive.

    Args:
        table: One split of a store.
        with_items: Add `target`, the code of each row's item, which predictions are written with.
        negatives: Add `negatives`, (B, count) int64, drawn anew each epoch.

    Attributes:
        epoch: Counted from 0; a `ResumableLoader` sets it.
        in_place: Whether `batches` gives neighbouring rows as they lie in the map; set by `remapped`.

    Raises:
        ConfigurationError: `negatives` names no indexed feature.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> from lightning_mp.data.store.feature_store import FeatureStore
        >>> store = FeatureStore(tempfile.mkdtemp())
        >>> _ = store.write(pa.table({"price": [1.0, 2.0, 3.0], "stars": [5.0, 4.0, 3.0]}))
        >>> dataset = StoreDataset(store.load())
        >>> {name: tuple(tensor.shape) for name, tensor in dataset[torch.tensor([0, 2])].items()}
        {'dense': (2, 2), 'group': (2,), 'row': (2,)}
    """

    def __init__(
        self, table: FeatureTable, *, with_items: bool = False, negatives: SampledNegatives | None = None
    ) -> None:
        self.table = table
        self.negatives = negatives
        self._drawn = [feature.name for feature in table.schema.ids]
        self._weights: NDArray[np.float64] | None = None
        if negatives is not None and negatives.feature not in self._drawn:
            there = ", ".join(f"`{name}`" for name in self._drawn) or "none"
            problem = f"`negatives.feature` is `{negatives.feature}`, indexed are: {there}"
            raise ConfigurationError(problem, "name one of these")
        self.with_items = with_items
        self.epoch = 0
        schema = table.schema
        self._half, self._single = (torch.tensor(dense_positions(schema, dtype)) for dtype in ("float16", "float32"))
        self._has = {group.name for group in layout(schema)}
        self._starts = [0, *accumulate(file.rows for file in table.files[:-1])]
        self._matrices: dict[GroupName, list[Tensor]] = {}
        self.in_place = False

    def __len__(self) -> int:
        return len(self.table)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_matrices": {}}

    def check(self) -> None:
        """Compare the sizes of the store's files with its manifest.

        Raises:
            ArtifactError: One is missing or was cut short.
        """
        self.table.check()

    def remapped(self) -> StoreDataset:
        """The same rows over fresh maps, where `batches` gives neighbouring rows as they lie there, without a copy.

        Maps are copy-on-write: what is written to such a batch reaches neither the file nor a batch of other maps. The
        dataset itself where its files are not mapped.
        """
        if not self.table.mapped:
            return self
        if self.negatives is not None:
            self._weighed(self.negatives)  # once for all copies
        other = copy(self)
        other.table, other.in_place = copy(self.table), True
        return other

    @override
    def __getitem__(self, index: Tensor | int) -> dict[str, Tensor]:
        """One batch.

        Args:
            index: Row numbers of the split, (B,) int64; a single one gives a batch of one row.

        Returns:
            As far as the store has them: `ids` (B, F) int32, `multi` (B, M, L) int32 (lists padded with 0 to the widest
            feature's width), `history` (B, L) int32, `dense` (B, D) float16 if every dense column is stored so, else
            float32, `labels` (B,) or (B, T) float32, `weight` (B,) float32; always `group`, the user's code, and
            `row`, the row of the source log, (B,) int64.
        """
        rows = torch.as_tensor(index).reshape(-1)
        return self._with_negatives(self._batch(lambda group: self._gathered(group, rows)))

    def batches(self, chunk: Chunk) -> list[dict[str, Tensor]]:
        """The batches of a chunk of a `RowOrder`, read at once: neighbouring rows are not picked one by one."""
        whole = self._batch(lambda group: self._chunk(group, chunk))
        if len(chunk.sizes) == 1:
            return [self._with_negatives(whole)]
        ends = accumulate(chunk.sizes)
        parts = [(end - size, size) for size, end in zip(chunk.sizes, ends, strict=True)]
        return [
            self._with_negatives({name: tensor.narrow(0, *part) for name, tensor in whole.items()}) for part in parts
        ]

    def _chunk(self, group: GroupName, chunk: Chunk) -> Tensor:
        shards = self._shards(group)
        if chunk.span is not None:
            return self._span(shards, *chunk.span)
        return chunk.gather(shards[0]) if len(shards) == 1 else self._gathered(group, chunk.rows())

    def _span(self, shards: list[Tensor], first: int, end: int) -> Tensor:
        pieces = [
            shard[max(first - start, 0) : end - start]
            for shard, start in zip(shards, self._starts, strict=True)
            if start < end and first < start + len(shard)
        ]
        if len(pieces) > 1:
            return torch.cat(pieces)
        return pieces[0] if self.in_place else pieces[0].clone()

    def _with_negatives(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.negatives is not None:
            own, rows = batch["ids"][:, self._drawn.index(self.negatives.feature)], batch["row"]
            batch["negatives"] = self.negatives.draw(own, rows, epoch=self.epoch, weights=self._weighed(self.negatives))
        return batch

    def _weighed(self, negatives: SampledNegatives) -> NDArray[np.float64]:
        if self._weights is None:
            place = self._drawn.index(negatives.feature)
            size = self.table.schema.ids[place].vocabulary_size or 1
            self._weights = negatives.weights(self.table.ids[:, place], size)
        return self._weights

    def _batch(self, rows: _Rows) -> dict[str, Tensor]:
        batch: dict[str, Tensor] = {}
        if "ids" in self._has:
            batch["ids"] = rows("ids")
        if "multi" in self._has:
            batch["multi"] = self._lists(rows("multi"))
        if "history" in self._has:
            batch["history"] = rows("history")
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

    def _lists(self, flat: Tensor) -> Tensor:
        return batch_lists(flat, [feature.width for feature in self.table.schema.of_kind("multi_categorical")])

    def _both(self, rows: _Rows) -> Tensor:
        narrow, wide = rows("dense16"), rows("dense32")
        dense = torch.empty(len(wide), len(self._half) + len(self._single))
        dense[:, self._half] = narrow.float()
        dense[:, self._single] = wide
        return dense

    def _gathered(self, group: GroupName, rows: Tensor) -> Tensor:
        shards = self._shards(group)
        if len(shards) == 1:
            return shards[0].index_select(0, rows)
        gathered = torch.empty(len(rows), shards[0].shape[1], dtype=shards[0].dtype)
        shard_of = torch.bucketize(rows, torch.tensor(self._starts[1:]), right=True)
        for number, (shard, start) in enumerate(zip(shards, self._starts, strict=True)):
            places = (shard_of == number).nonzero().squeeze(1)
            gathered[places] = shard.index_select(0, rows[places] - start)
        return gathered

    def _shards(self, group: GroupName) -> list[Tensor]:
        if group not in self._matrices:
            self._matrices[group] = [torch.from_numpy(matrix) for matrix in self.table.shards(group)]
        return self._matrices[group]
