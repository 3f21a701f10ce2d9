"""The items of a store, one row each, as batches hold them: the candidates of a recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import FeatureSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCatalogue:
    """All items that a store knows, in the order of `FeatureStore.items()`.

    Columns are those of a batch; only those of role `item` say something of the item, the others are of some row.

    Attributes:
        schema: Of the store.
        ids: (C, F) int32.
        dense: (C, D) float16 or float32.
        multi: (C, M * L) int32, the lists side by side.
        row: (C,) int64, the vocabulary row of each item's `id`; 0 where training did not know it, or none is declared.
        trained: (C,) whether the training part has a row of the item.
        present: (C,) whether any part has one: an item without is no candidate.
    """

    schema: FeatureSchema
    ids: npt.NDArray[np.int32]
    dense: npt.NDArray[np.float16] | npt.NDArray[np.float32]
    multi: npt.NDArray[np.int32]
    row: npt.NDArray[np.int64]
    trained: npt.NDArray[np.bool_]
    present: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def likeness(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Vocabulary rows of categorical features of the items, (C, names); 0 where unknown.

        Raises:
            ConfigurationError: A name is no categorical feature of the items.
        """
        return self.ids[:, require_likeness(self.schema, names)].astype(np.int64)


def require_likeness(schema: FeatureSchema, names: Sequence[str]) -> list[int]:
    """Columns of `ids` that hold the categorical features of the items that `cold_start` names.

    Raises:
        ConfigurationError: A name is no categorical feature of the items.
    """
    found = {f.name: place for place, f in enumerate(schema.ids) if f.kind != "id" and f.role == "item"}
    for name in names:
        if name not in found:
            there = ", ".join(f"`{known}`" for known in found) or "none"
            other = next((f", which is `{f.kind}` of role `{f.role}`" for f in schema.features if f.name == name), "")
            problem = f"`cold_start` names `{name}`{other}; categorical features of the items are: {there}"
            raise ConfigurationError(problem, "name one of these, or leave `cold_start` out")
    return [found[name] for name in names]


def item_place(schema: FeatureSchema) -> int:
    """Column of `ids` that holds the item's `id`.

    Raises:
        ConfigurationError: There is none, or several.
    """
    found = [place for place, f in enumerate(schema.ids) if f.kind == "id" and f.role == "item"]
    if len(found) != 1:
        problem = f"the schema has {len(found)} features of kind `id` and role `item`, one is needed"
        raise ConfigurationError(problem, "declare one: {name: item_id, kind: id, role: item}")
    return found[0]


def item_catalogue(store: FeatureStore, version: int | None = None) -> ItemCatalogue:
    """Each item as its latest training row shows it; one that training does not know, as its first later row does.

    Args:
        store: Its rows know their items.
        version: Of the store; the latest one when left out.

    Raises:
        DataError: The store does not say which item a row is of.
    """
    manifest = store.manifest_of(version)
    tables = {name: store.load(name, version) for name in ("train", "validation", "test") if name in manifest.splits}
    keys = store.items(version)
    count = max(int(table.item.max()) + 1 for table in tables.values()) if keys is None else len(keys)
    found = {name: _first_or_last(table, count, last=name == "train") for name, table in tables.items()}
    shown = next(iter(tables.values()))
    ids, dense, multi = (np.zeros((count, m.shape[1]), dtype=m.dtype) for m in _matrices(shown))
    filled = np.zeros(count, dtype=bool)
    for name, table in tables.items():
        take = (found[name] >= 0) & ~filled
        for target, matrix in zip((ids, dense, multi), _matrices(table), strict=True):
            target[take] = matrix[found[name][take]]
        filled |= take
    places = [p for p, f in enumerate(manifest.schema.ids) if f.kind == "id" and f.role == "item"]
    row = ids[:, places[0]].astype(np.int64) if places else np.zeros(count, dtype=np.int64)
    return ItemCatalogue(
        schema=manifest.schema, ids=ids, dense=dense, multi=multi, row=row, trained=found["train"] >= 0, present=filled
    )


def _matrices(table: FeatureTable) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    return table.ids, table.dense, table.group("multi")


def _first_or_last(table: FeatureTable, count: int, *, last: bool) -> npt.NDArray[np.int64]:
    """(count,) a row of each item, -1 where there is none: the latest, or the earliest."""
    if len(table) and table.item.min() < 0:
        problem = "the store does not say which item its rows are of: it was written without `items`"
        raise DataError(problem, "make it with `prepare`, or write `@item` and `items`")
    order = np.lexsort((table.row, table.time))
    order = order if last else order[::-1]
    found = np.full(count, -1, dtype=np.int64)
    found[table.item[order]] = order  # of several the last one stays
    return found
