"""SequenceDataset: each user's items in the order of time, with the next one as the target of each place."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import override

from lightning_mp.data.item_catalogue import item_place
from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import FeatureSchema


class SequenceDataset(Dataset[dict[str, Tensor]]):
    """Each user's items in the order of time, with the next one as the target of each place.

    A user's items are cut into pieces of up to `length` places, from the latest on, so that every item but the first is
    a target once an epoch. Items of one time stand in the order of the log. Items that the vocabulary does not know are
    passed over, so that 0 is padding and nothing else.

    Args:
        table: One part of a store. Rows whose first label is 0 say what was not taken, and are passed over.
        length: Places, L; those of the schema's feature of kind `sequence` when left out.

    Raises:
        ConfigurationError: The schema has not one feature of kind `id` and role `item`, or no length is given and no
            feature of kind `sequence` gives one.
        DataError: No user has two items.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> from lightning_mp.data.store.feature_store import FeatureStore
        >>> from lightning_mp.schema import Feature, FeatureSchema
        >>> item = Feature(name="item", kind="id", role="item", source_dtype="int64", stored_dtype="int32",
        ...                vocabulary_size=9)
        >>> store = FeatureStore(tempfile.mkdtemp())
        >>> rows = pa.table({"item": [5, 3, 7, 4], "@user": [0, 0, 0, 1], "@time": [1, 2, 3, 1]})
        >>> _ = store.write({"train": rows}, schema=FeatureSchema(features=(item,)))
        >>> batch = SequenceDataset(store.load(), length=3)[torch.tensor([0])]
        >>> batch["history"].tolist(), batch["target"].tolist()
        ([[0, 5, 3]], [[0, 3, 7]])
    """

    def __init__(self, table: FeatureTable, *, length: int | None = None) -> None:
        self.length = _length(table.schema) if length is None else length
        length = self.length
        item = table.ids[:, item_place(table.schema)]
        taken = table.labels[:, 0] > 0 if table.labels.shape[1] else np.ones(len(item), dtype=bool)
        known = np.flatnonzero((item > 0) & taken)
        order = known[np.lexsort((table.row[known], table.time[known], table.user[known]))]
        self._items: NDArray[np.int64] = item[order].astype(np.int64)
        users, first, count = np.unique(table.user[order], return_index=True, return_counts=True)
        pieces = np.maximum(-(-(count - 1) // length), 0)
        if not pieces.sum():
            raise DataError("no user of the training part has two items", "train on a longer log")
        # Counted from the user's end: piece 0 holds the latest places.
        back = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self._end = np.repeat(first + count, pieces) - back * length
        self._first = np.repeat(first, pieces)
        self._user = np.repeat(users, pieces)

    def __len__(self) -> int:
        return len(self._end)

    @override
    def __getitem__(self, index: Tensor | int) -> dict[str, Tensor]:
        """One batch.

        Args:
            index: Numbers of pieces, (B,) int64; a single one gives a batch of one.

        Returns:
            `history` and `target` (B, L) int64, padded with 0 in front, `group`, the user's code, and `row`, the number
            of the piece, (B,) int64.
        """
        pieces = torch.as_tensor(index).reshape(-1).numpy()
        places = self._end[pieces][:, None] - self.length + np.arange(self.length)
        inside = places > self._first[pieces][:, None]
        target = np.where(inside, self._items[np.maximum(places, 0)], 0)
        history = np.where(inside, self._items[np.maximum(places - 1, 0)], 0)
        return {
            "history": torch.from_numpy(history),
            "target": torch.from_numpy(target),
            "group": torch.from_numpy(self._user[pieces]),
            "row": torch.from_numpy(pieces),
        }


def _length(schema: FeatureSchema) -> int:
    found = schema.of_kind("sequence")
    if not found:
        problem = "training on sequences needs a feature of kind `sequence`, and the schema has none"
        hint = "declare one: {name: before, kind: sequence, role: user, length: 50, history: {of: order, by: [user]}}"
        raise ConfigurationError(problem, hint)
    return found[0].width
