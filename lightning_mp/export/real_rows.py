"""Real rows of a store, or of a data module, to judge an export on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.store.layout import GroupName
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.export.candidate_lists import item_columns
from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.export.judged_rows import JudgedRows, slices_of
from lightning_mp.export.raw_features import HISTORY, LISTS, item_key, with_history
from lightning_mp.schema import FeatureSchema

Batch = Mapping[str, Tensor]
_SPLITS = ("test", "validation", "train")
_GROUPS: Final[tuple[GroupName, ...]] = ("multi", "history")
_MOST: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRows:
    """Rows of a store, and what is needed to read them.

    Attributes:
        schema: Of the store; with the history that the network takes, where the store has no sequence.
        vocabularies: Of every id, category and list, by name.
        split: Where the rows come from.
        rows: The rows, encoded, with all that a network may take.
        labels: (N, T), one column a label; (N, 0) without one.
        taken: Names of the inputs that the network takes.
    """

    schema: FeatureSchema
    vocabularies: Mapping[str, Vocabulary]
    split: str
    rows: EncodedRows
    labels: NDArray[np.float32]
    taken: tuple[str, ...] = ()

    @classmethod
    def read(cls, store: FeatureStore, schema: FeatureSchema, rows: int | Iterable[Batch]) -> RealRows:
        """Read rows that training did not see: test rows of the store, else validation, else training rows.

        Args:
            store: What the model was trained on.
            schema: Of the model.
            rows: Rows at most; a store keeps them in random order, so the first ones are a fair draw. Or batches of a
                data module, of which 4096 rows are taken: for a network that takes what no store holds.

        Raises:
            ConfigurationError: `rows` is below 2.
            SchemaError: The model was trained on other features.
            DataError: There are fewer than two rows.
        """
        if isinstance(rows, int) and rows < 2:
            raise ConfigurationError(f"`rows` must be at least 2, got {rows}", "leave it out for 4096")
        schema.require_equal(store.schema, here="the model", there=f"store `{store.path}`")
        if not isinstance(rows, int):
            return cls._of_batches(store, schema, rows)
        for split in (split for split in _SPLITS if split in store.manifest.splits):
            table = store.load(split)
            if len(table) >= 2:
                encoded = EncodedRows(table.ids[:rows].astype(np.int64), table.dense[:rows].astype(np.float32))
                others: dict[str, NDArray[Any]] = {}
                flat, history = (np.asarray(table.group(name)[:rows]).astype(np.int64) for name in _GROUPS)
                if flat.shape[1]:
                    others["multi"] = _stacked(schema, flat)
                if history.shape[1]:
                    others[HISTORY] = history
                labels = np.array(table.labels[:rows], dtype=np.float32)
                return cls._made(store, schema, split, replace(encoded, others=others), labels)
        raise DataError(f"store `{store.path}` has no split with two rows or more", "prepare it from more data")

    @classmethod
    def _of_batches(cls, store: FeatureStore, schema: FeatureSchema, batches: Iterable[Batch]) -> RealRows:
        parts: list[dict[str, NDArray[Any]]] = []
        found = 0
        for batch in batches:
            parts.append({name: tensor.detach().cpu().numpy() for name, tensor in batch.items()})
            found += len(next(iter(parts[-1].values())))
            if found >= _MOST:
                break
        if found < 2:
            raise DataError(f"`rows` gave {found} rows, at least 2 are needed", "give batches of real rows")
        whole = {name: np.concatenate([part[name] for part in parts])[:_MOST] for name in parts[0]}
        count, key = len(next(iter(whole.values()))), item_key(schema)
        ids = np.array(whole.get("ids", np.zeros((count, len(schema.ids)))), dtype=np.int64)
        lists = ("multi", HISTORY, "target")
        others: dict[str, NDArray[Any]] = {name: whole[name].astype(np.int64) for name in lists if name in whole}
        widths = [feature.width for feature in schema.of_kind("multi_categorical")]
        if widths:
            others.setdefault("multi", np.zeros((count, len(widths), max(widths)), dtype=np.int64))
        for feature in schema.of_kind("sequence"):
            others.setdefault(HISTORY, np.zeros((count, feature.width), dtype=np.int64))
        if "ids" not in whole and key is not None and "target" in others:
            ids[:, schema.ids.index(key)] = others["target"]
        dense = np.array(whole.get("dense", np.zeros((count, schema.dense_width))), dtype=np.float32)
        labels = whole.get("labels", np.empty((count, 0))).astype(np.float32).reshape(count, -1)
        return cls._made(store, schema, "given", EncodedRows(ids, dense, others), labels)

    @classmethod
    def _made(
        cls, store: FeatureStore, schema: FeatureSchema, split: str, rows: EncodedRows, labels: NDArray[np.float32]
    ) -> RealRows:
        key = item_key(schema)
        if key is not None:  # what the graph makes of the item's key, whatever a batch calls its target
            rows = replace(rows, others={**rows.others, "target": rows.ids[:, schema.ids.index(key)]})
        if HISTORY in rows.others:
            schema = with_history(schema, rows.others[HISTORY].shape[1])
        names = store.manifest.vocabularies
        vocabularies = {
            feature.name: store.vocabulary(feature.name if feature.name in names or key is None else key.name)
            for feature in (*schema.ids, *schema.of_kind(*LISTS))
        }
        return cls(schema=schema, vocabularies=vocabularies, split=split, rows=rows, labels=labels)

    def judged(self) -> JudgedRows:
        """The rows as the network takes them, with sizes of vocabularies, the item's columns, and slices of them."""
        columns = {
            feature.name: np.where(
                self.rows.ids[:, column] == 0,
                "",
                self.vocabularies[feature.name].decode(self.rows.ids[:, column]).astype(np.str_),
            )
            for column, feature in enumerate(self.schema.ids)
        }
        return JudgedRows(
            split=self.split,
            rows=self.rows.only(self.taken or tuple(self.rows.feeds)),
            labels=self.labels if self.labels.shape[1] else None,
            sizes=self._sizes(),
            items=item_columns(self.schema, self.rows.feeds),
            slices=slices_of(columns, self.labels[:, 0] if self.labels.shape[1] else None),
        )

    def _sizes(self) -> dict[str, Any]:
        several = [[feature.vocabulary_size or 0] for feature in self.schema.of_kind("multi_categorical")]
        sequences, key = self.schema.of_kind("sequence"), item_key(self.schema)
        sizes = {
            "ids": [feature.vocabulary_size or 0 for feature in self.schema.ids],
            "multi": several,
            HISTORY: [feature.vocabulary_size or 0 for feature in sequences[:1]],
            "target": [] if key is None else [key.vocabulary_size or 0],
        }
        return {name: found for name, found in sizes.items() if found}


def _stacked(schema: FeatureSchema, flat: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lists side by side, as a store keeps them, to (N, M, L)."""
    widths = [feature.width for feature in schema.of_kind("multi_categorical")]
    stacked = np.zeros((len(flat), len(widths), max(widths)), dtype=np.int64)
    start = 0
    for place, width in enumerate(widths):
        stacked[:, place, :width] = flat[:, start : start + width]
        start += width
    return stacked
