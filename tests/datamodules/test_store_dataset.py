from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.store.matrices import KEY_PREFIX
from lightning_mp.datamodules.row_order import RowOrder
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.schema import Feature, FeatureSchema

ROWS = 200


def features(dtypes, *, labels=1, weight=True):
    number = {"kind": "numeric", "source_dtype": "double"}
    made = [Feature(name=f"x{i}", role="context", stored_dtype=dtype, **number) for i, dtype in enumerate(dtypes)]
    made.insert(
        1,
        Feature(name="user", kind="id", role="user", source_dtype="int64", stored_dtype="int32", vocabulary_size=9),
    )
    made += [Feature(name=f"y{i}", role="label", stored_dtype="float32", **number) for i in range(labels)]
    if weight:
        made.append(Feature(name="w", role="weight", stored_dtype="float32", **number))
    return FeatureSchema(features=tuple(made))


def dataset(tmp_path, schema, **more):
    draw = np.random.default_rng()
    columns = {
        f.name: draw.normal(size=ROWS) if f.kind == "numeric" else draw.integers(0, 9, ROWS) for f in schema.features
    }
    columns |= {KEY_PREFIX + name: draw.integers(0, 1000, ROWS) for name in ("time", "row", "user", "item")}
    store = FeatureStore(tmp_path / "store")
    store.write({"train": pa.table(columns)}, schema=schema)
    return StoreDataset(store.load(), **more)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float16", "float16"], torch.float16),
        (["float32", "float32"], torch.float32),
        (["float16", "float32", "float16", "float32"], torch.float32),
    ],
)
def test_a_batch_is_the_rows_that_were_asked_for(tmp_path, dtypes, expected):
    data = dataset(tmp_path, features(dtypes))
    index = torch.randint(0, ROWS, (33,))
    batch = data[index]
    table, rows = data.table, index.numpy()
    assert set(batch) == {"ids", "dense", "labels", "weight", "group", "row"}
    assert batch["dense"].dtype == expected
    assert torch.equal(batch["dense"], torch.tensor(table.dense[rows]))
    assert batch["ids"].dtype == torch.int32
    assert torch.equal(batch["ids"], torch.tensor(table.ids[rows]))
    for name, values in {
        "labels": table.labels[:, 0],
        "weight": table.weight,
        "group": table.user,
        "row": table.row,
    }.items():
        assert batch[name].dtype == (torch.int64 if name in ("group", "row") else torch.float32)
        assert torch.equal(batch[name], torch.tensor(values[rows]))


def test_what_the_schema_lacks_the_batch_lacks(tmp_path):
    data = dataset(tmp_path, features([], labels=2, weight=False), with_items=True)
    batch = data[torch.tensor([5, 1])]
    assert set(batch) == {"ids", "labels", "group", "row", "target"}
    assert batch["labels"].shape == (2, 2)
    assert batch["target"].tolist() == data.table.item[[5, 1]].tolist()
    assert data[7]["row"].tolist() == [data.table.row[7]]
    assert len(data) == ROWS


def test_a_batch_may_be_changed_in_place(tmp_path):
    data = dataset(tmp_path, features(["float16"]))
    index = torch.arange(ROWS)
    before = data[index]["dense"].clone()
    data[index]["dense"].add_(1)
    assert torch.equal(data[index]["dense"], before)


def test_other_processes_map_the_file_themselves(tmp_path):
    data = dataset(tmp_path, features(["float16"]))
    _ = data[torch.tensor([0])]
    assert len(pickle.dumps(data)) < 4000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(data.__getitem__, (torch.tensor([3, 4]),))
    assert torch.equal(there["dense"], data[torch.tensor([3, 4])]["dense"])


def test_the_stored_order_is_given_as_it_lies_and_not_copied(tmp_path):
    data = dataset(tmp_path, features(["float16", "float16"]))
    fresh = data.remapped()
    chunks = list(RowOrder(ROWS, batch_size=64, shuffle="none").chunks(0))
    batches = [batch for chunk in chunks for batch in fresh.batches(chunk)]
    table = fresh.table.group("dense16")
    start = table.__array_interface__["data"][0]
    at = [batch["dense"].data_ptr() - start for batch in batches]
    assert at == [first * table.strides[0] for first in (0, 64, 128, 192)]
    copied = [batch for chunk in chunks for batch in data.batches(chunk)]
    for one, other in zip(batches, copied, strict=True):
        assert set(one) == set(other)
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert copied[0]["dense"].data_ptr() != data.table.group("dense16").__array_interface__["data"][0]


def test_neighbours_out_of_several_shards_are_joined(tmp_path):
    data = dataset(tmp_path, features(["float16", "float32"]))
    store = FeatureStore(tmp_path / "store")
    draw = np.random.default_rng()
    for rows in (1, 77):
        columns = {
            f.name: draw.normal(size=rows) if f.kind == "numeric" else draw.integers(0, 9, rows)
            for f in store.schema.features
        }
        store.append({"train": pa.table(columns)})
    data = StoreDataset(store.load())
    assert len(data.table.files) == 3
    expected = data[torch.arange(ROWS + 78)]
    for shown in (data, data.remapped()):
        for size in (30, ROWS, ROWS + 1, 1000):
            order = RowOrder(ROWS + 78, batch_size=size, shuffle="none")
            batches = [batch for chunk in order.chunks(0) for batch in shown.batches(chunk)]
            for name, tensor in expected.items():
                assert torch.equal(torch.cat([batch[name] for batch in batches]), tensor)


def test_what_is_decoded_into_memory_is_not_decoded_again(tmp_path):
    store = FeatureStore(tmp_path / "store", storage_format="parquet")
    store.write(pa.table({"x": np.random.default_rng().normal(size=ROWS)}))
    data = StoreDataset(store.load())
    assert data.remapped() is data
    data = StoreDataset(FeatureStore(tmp_path / "store").load(memory_map=False))
    assert data.remapped() is data
