"""Rows of a store to judge an export on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.export.candidate_lists import item_columns
from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.export.judged_rows import JudgedRows, slices_of
from lightning_mp.schema import FeatureSchema

_SPLITS = ("test", "validation", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRows:
    """Rows of a store, and what is needed to read them.

    Attributes:
        schema: Of the store.
        vocabularies: Of every id and categorical feature, by name.
        split: Where the rows come from.
        rows: The rows, encoded.
        labels: (N,) first label column, or `None`.
    """

    schema: FeatureSchema
    vocabularies: Mapping[str, Vocabulary]
    split: str
    rows: EncodedRows
    labels: NDArray[np.float32] | None

    @classmethod
    def read(cls, store: FeatureStore, schema: FeatureSchema, count: int) -> RealRows:
        """Read up to `count` rows that training did not see: test rows, else validation, else training rows.

        Args:
            store: What the model was trained on.
            schema: Of the model.
            count: Rows at most; a store keeps them in random order, so the first ones are a fair draw.

        Raises:
            ConfigurationError: `count` is below 2.
            SchemaError: The model was trained on other features.
            DataError: The store has fewer than two rows.
        """
        if count < 2:
            raise ConfigurationError(f"`rows` must be at least 2, got {count}", "leave it out for 4096")
        schema.require_equal(store.schema, here="the model", there=f"store `{store.path}`")
        vocabularies = {feature.name: store.vocabulary(feature.name) for feature in schema.ids}
        splits = [split for split in _SPLITS if split in store.manifest.splits]
        for split in splits:
            table = store.load(split)
            if len(table) >= 2:
                rows = EncodedRows(table.ids[:count].astype(np.int64), table.dense[:count].astype(np.float32))
                labels = np.array(table.labels[:count, 0], dtype=np.float32) if table.labels.shape[1] else None
                return cls(schema=schema, vocabularies=vocabularies, split=split, rows=rows, labels=labels)
        raise DataError(f"store `{store.path}` has no split with two rows or more", "prepare it from more data")

    def judged(self) -> JudgedRows:
        """The same rows, with the sizes of their vocabularies, the item's columns, and slices of them."""
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
            rows=self.rows,
            labels=self.labels,
            sizes={"ids": [feature.vocabulary_size or 0 for feature in self.schema.ids]} if self.schema.ids else {},
            items=item_columns(self.schema),
            slices=slices_of(columns, self.labels),
        )
