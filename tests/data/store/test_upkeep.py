from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.datamodules.store_dataset import StoreDataset
from lightning_mp.errors import ArtifactError, ConfigurationError, DataError


def rows(count, first=0):
    draw = np.random.default_rng()
    return pa.table(
        {
            "x": draw.normal(size=count).astype(np.float16),
            "z": draw.normal(size=count),
            "c": draw.integers(0, 5, count),
            "@row": np.arange(first, first + count),
        }
    )


@pytest.fixture
def store(tmp_path):
    store = FeatureStore(tmp_path / "store")
    plain = rows(300).drop_columns("@row")
    store.write(plain, users=pa.array(["ada", "grace"]), source={"key": "first"})
    return store


def encoded(store, table):
    words = store.vocabulary("c")
    return table.set_column(2, "c", pa.array(words.encode(table["c"].to_numpy())))


def test_append_shares_the_old_rows_and_shuffles_the_new(store):
    old = store.load()
    more = encoded(store, rows(200, first=300))
    assert store.append(more, source={"day": 2}) == 2
    assert [len(shard) for shard in store.load().shards("ids")] == [300, 200]
    first, second = (store.path / f"v00000{n}" / "part-00000.arrow" for n in (1, 2))
    assert first.stat().st_ino == second.stat().st_ino
    new = store.load()
    assert new.row[:300].tolist() == old.row.tolist()
    tail = new.row[300:]
    assert sorted(tail.tolist()) == list(range(300, 500)) != tail.tolist()
    assert new.group("dense16")[300:][np.argsort(tail), 0].tobytes() == more["x"].to_numpy().tobytes()
    assert store.manifest.source == {"key": "first", "appended": [{"day": 2}]}
    store.verify()


def test_rows_without_a_number_go_on_from_the_last_one(tmp_path):
    store = FeatureStore(tmp_path / "store")
    store.write(pa.table({"x": np.arange(300.0), "@row": np.arange(300) + 1000}))
    for blocks in (1, 2):
        five = [pa.record_batch({"x": np.arange(5.0)})] * blocks
        store.append(pa.RecordBatchReader.from_batches(five[0].schema, five))
    assert sorted(store.load().row.tolist()) == list(range(1000, 1315))
    store.append(pa.table({"x": [7.0], "@row": [3]}))  # one that carries its row keeps it
    store.append(pa.table({"x": [8.0]}))
    assert store.load().row[-2:].tolist() == [3, 1315]


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
def test_batches_over_several_shards(store, shuffle):
    store.append(encoded(store, rows(200, first=300)))
    store.append(encoded(store, rows(17, first=500)))
    table = store.load()
    place = np.argsort(table.row)
    seen = []
    for batch in ResumableLoader(StoreDataset(table), batch_size=60, shuffle=shuffle):
        at = place[batch["row"].numpy()]
        assert torch.equal(batch["dense"], torch.tensor(table.dense[at]))
        assert torch.equal(batch["ids"], torch.tensor(table.ids[at]))
        seen += batch["row"].tolist()
    assert sorted(seen) == list(range(517))


def test_compact_mixes_all_rows_and_loses_none(store):
    store.append({"train": encoded(store, rows(200, first=300)), "test": encoded(store, rows(5))})
    before = store.load()
    assert store.compact(shuffle_seed=9) == 3
    after = store.load()
    assert len(store.manifest.splits["train"]) == 1
    assert sorted(after.row.tolist()) == list(range(500))
    assert max(after.row[:250]) >= 300 > min(after.row[250:])
    for group in ("ids", "dense16", "dense32", "keys"):
        mine, theirs = after.group(group)[np.argsort(after.row)], before.group(group)[np.argsort(before.row)]
        assert mine.tobytes() == theirs.tobytes()
    assert store.users().to_pylist() == ["ada", "grace"]
    parquet = FeatureStore(store.path, "parquet")
    parquet.compact()
    assert (
        parquet.load().group("dense16")[np.argsort(parquet.load().row)].tobytes()
        == before.group("dense16")[np.argsort(before.row)].tobytes()
    )


def test_gc_keeps_what_a_kept_version_shares(store):
    for day in range(3):
        store.append(encoded(store, rows(10, first=1000 + 10 * day)))
    open_before = store.load(version=1)
    expected = store.load().row.tolist()
    first = open_before.row.tolist()
    assert store.gc(keep=2) == (1, 2)
    assert store.versions() == (3, 4)
    assert store.load().row.tolist() == expected
    assert open_before.row.tolist() == first  # a reader goes on with the files it holds
    store.verify()
    assert store.gc(keep=1) == (3,)
    assert store.append(encoded(store, rows(1))) == 5
    with pytest.raises(ConfigurationError, match="`keep` must be at least 1, got 0"):
        store.gc(keep=0)


def test_gc_never_removes_the_latest(store):
    store.append(encoded(store, rows(10)))
    (store.path / "LATEST").write_text("v000001\n")
    assert store.gc(keep=1) == ()
    assert store.versions() == (1, 2)


def test_diff_says_what_changed(store):
    store.append(encoded(store, rows(10)))
    found = store.diff(1)
    assert (found.rows, found.shards_shared, found.shards_added) == ({"train": (300, 310)}, 1, 1)
    assert str(found) == "from version 1 to 2\ntrain: 300 rows, now 310\nshards: 1 shared, 1 new, 0 gone"
    FeatureStore(store.path, dtype_mapping={"z": "float16"}).write(
        rows(300).drop_columns(["@row", "x"]), source={"key": "second"}
    )
    lines = str(store.diff(2)).splitlines()
    assert "feature `x` is gone" in lines
    assert "feature `z`: stored_dtype was 'float32', now 'float16'" in lines
    assert lines[-1] == "made from another log or with other settings"
    assert not store.diff(3, 3)
    assert str(store.diff(3, 3)) == "versions 3 and 3 hold the same"


def test_info_counts_bytes_and_says_types(store):
    info = store.info()
    assert (info.rows, info.shards, info.versions) == ({"train": 300}, {"train": 1}, (1,))
    assert info.bytes == sum(f.stat().st_size for f in (store.path / "v000001").iterdir() if f.name != "manifest.json")
    assert (info.dense_bytes, info.dense_bytes_float32) == (6, 8)
    assert "dense numbers: 6 bytes a row, 75% of float32" in str(info)


def test_append_refuses_what_does_not_fit(store):
    with pytest.raises(DataError, match=r"feature `c` has 99 at row 0 .* outside its vocabulary"):
        store.append(rows(1).set_column(2, "c", pa.array([99])))
    with pytest.raises(ConfigurationError, match="`users` does not begin with the store's 2 keys"):
        store.append(encoded(store, rows(1)), users=pa.array(["grace", "ada", "new"]))
    with pytest.raises(ArtifactError, match="is not a feature store"):
        FeatureStore(store.path / "none").append(rows(1))
    assert store.versions() == (1,)
    store.append(encoded(store, rows(1)), users=pa.array(["ada", "grace", "new"]))
    assert store.users().to_pylist() == ["ada", "grace", "new"]
    assert store.users(version=1).to_pylist() == ["ada", "grace"]


def test_a_read_only_disk_is_named(store):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    store.path.chmod(0o500)
    try:
        with pytest.raises(ArtifactError, match="Permission denied"):
            store.write(rows(3).drop_columns("@row"))
    finally:
        store.path.chmod(0o700)
