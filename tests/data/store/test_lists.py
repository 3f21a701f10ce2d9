"""Lists of vocabulary rows in a store: written, checked, and given as a batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.errors import DataError
from lightning_mp.schema import Feature, FeatureSchema

INDEXED = {"source_dtype": "string", "stored_dtype": "int32"}
SCHEMA = FeatureSchema(
    features=(
        Feature(name="item", kind="id", role="item", vocabulary_size=50, **INDEXED),
        Feature(name="genres", kind="multi_categorical", role="item", vocabulary_size=9, width=3, **INDEXED),
        Feature(name="tags", kind="multi_categorical", role="item", vocabulary_size=30, width=2, **INDEXED),
        Feature(name="before", kind="sequence", role="user", vocabulary_size=50, width=4, **INDEXED),
    )
)


def rows(draw, count=40):
    def lists(size, width):
        return pa.FixedSizeListArray.from_arrays(pa.array(draw.integers(0, size, count * width)), width)

    item = pa.array(draw.integers(0, 50, count))
    return pa.table({"item": item, "genres": lists(9, 3), "tags": lists(30, 2), "before": lists(50, 4)})


@pytest.mark.parametrize("storage_format", ["binary", "parquet"])
def test_lists_come_back_as_they_were_written(tmp_path, storage_format):
    table = rows(np.random.default_rng())
    store = FeatureStore(tmp_path / "store", storage_format=storage_format)
    store.write({"train": table}, schema=SCHEMA)
    part = store.load()
    batch = StoreDataset(part)[torch.arange(40)]
    assert batch["multi"].shape == (40, 2, 3)
    for place, row in enumerate(part.row.tolist()):
        raw = table.slice(row, 1).to_pylist()[0]
        assert batch["multi"][place].tolist() == [raw["genres"], [*raw["tags"], 0]]
        assert batch["history"][place].tolist() == raw["before"] == part.history[place].tolist()
    store.append({"train": rows(np.random.default_rng())})
    assert StoreDataset(store.load())[torch.tensor([0, 79])]["history"].shape == (2, 4)


def test_a_row_outside_the_vocabulary_is_named(tmp_path):
    table = rows(np.random.default_rng())
    wrong = pa.FixedSizeListArray.from_arrays(pa.array([*[1] * 158, 50, 2]), 4)
    table = table.set_column(table.column_names.index("before"), "before", wrong)
    with pytest.raises(
        DataError, match=r"feature `before\[2\]` has 50 at row 39 .*outside its vocabulary of 50 rows \(0 to 49\)"
    ):
        FeatureStore(tmp_path / "store").write({"train": table}, schema=SCHEMA)
    short = pa.array([[1, 2, 3]] * 40)
    table = table.set_column(table.column_names.index("before"), "before", short)
    with pytest.raises(DataError, match=r"feature `before` .* has a list of 3 numbers, its width is 4"):
        FeatureStore(tmp_path / "store").write({"train": table}, schema=SCHEMA)
