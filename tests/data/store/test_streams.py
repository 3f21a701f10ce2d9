from __future__ import annotations

import resource
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ArtifactError, ConfigurationError, DataError
from lightning_mp.schema import Feature, FeatureSchema


def rows(count, seed=None):
    draw = np.random.default_rng(seed)
    return pa.table({"x": draw.normal(size=count), "y": draw.normal(size=count).astype(np.float16)})


def reader(table, chunk):
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=chunk))


@pytest.mark.parametrize("memory_limit", [1 << 30, 40_000, 3000])
def test_a_stream_is_stored_as_the_table_would_be(tmp_path, memory_limit):
    table = rows(2000)
    whole, streamed = FeatureStore(tmp_path / "whole"), FeatureStore(tmp_path / "streamed")
    whole.write(table, shuffle_seed=5)
    streamed.write(reader(table, 77), shuffle_seed=5, memory_limit=memory_limit)
    for group in ("dense16", "dense32", "keys"):
        assert streamed.load().group(group).tobytes() == whole.load().group(group).tobytes()
    shards = len(streamed.manifest.splits["train"])
    assert shards == -(-2000 // max(memory_limit // 2 // 38, 1)) if memory_limit < 1 << 20 else shards == 1
    assert not [file for file in tmp_path.iterdir() if file.name not in ("whole", "streamed")]


def test_frames_are_streams(tmp_path):
    class Frame:
        def __init__(self, table):
            self.table = table

        def __arrow_c_stream__(self, requested_schema=None):
            return self.table.__arrow_c_stream__(requested_schema)

    store = FeatureStore(tmp_path / "store")
    store.write({"train": Frame(rows(50)), "test": Frame(rows(9))}, schema=schema("float32"))
    assert (len(store.load()), len(store.load("test"))) == (50, 9)


def schema(dtype):
    number = {"kind": "numeric", "role": "context", "source_dtype": "double"}
    return FeatureSchema(
        features=(Feature(name="x", stored_dtype=dtype, **number), Feature(name="y", stored_dtype="float16", **number))
    )


def test_what_is_wrong_deep_in_a_stream_is_named_by_its_row(tmp_path):
    table = rows(1000)
    values = table["x"].to_numpy().copy()
    values[777] = np.nan
    store = FeatureStore(tmp_path / "store")
    with pytest.raises(DataError, match=r"feature `x` has nan at row 777 \(train rows\)"):
        store.write(reader(table.set_column(0, "x", pa.array(values)), 100), schema=schema("float32"))
    values[777] = 1e6
    with pytest.raises(DataError, match=r"feature `x` has 1000000 at row 777 .* float16's largest"):
        store.write(reader(table.set_column(0, "x", pa.array(values)), 100), schema=schema("float16"))
    assert not store.exists
    store.write(
        reader(table.set_column(0, "x", pa.array(values)), 100), schema=schema("float16"), on_overflow="float32"
    )
    assert store.schema.feature("x").stored_dtype == "float32"
    assert store.manifest.notes["x"] == "float32: 1 numbers are beyond float16"


def test_a_stream_that_breaks_off(tmp_path):
    def batches():
        yield from rows(100).to_batches()
        raise OSError("connection lost")

    stream = pa.RecordBatchReader.from_batches(rows(1).schema, batches())
    with pytest.raises(DataError, match=r"the stream of train rows broke off after 100 rows: .*connection lost"):
        FeatureStore(tmp_path / "store").write(stream)
    assert not (tmp_path / "store").exists()


def test_what_is_no_stream(tmp_path):
    with pytest.raises(ConfigurationError, match="the train rows are a `list`, which is no table and no Arrow stream"):
        FeatureStore(tmp_path).write({"train": [1, 2]}, schema=schema("float32"))
    words = pa.table({"brand": ["a"]})
    with pytest.raises(ConfigurationError, match="column `brand` of the stream holds categories"):
        FeatureStore(tmp_path).write(reader(words, 1))


def test_more_rows_than_memory(tmp_path):
    # 100 MB of rows, written by a process that may have 70 MB more than the bare packages take.
    program = textwrap.dedent(f"""
        import resource, numpy as np, pyarrow as pa
        from lightning_mp.data.store.feature_store import FeatureStore
        FeatureStore({str(tmp_path / "warm")!r}).write(pa.table({{"x": [1.0]}}))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        def batches():
            for seed in range(25):
                values = np.random.default_rng(seed).normal(size=20_000 * 50).astype("f4")
                yield pa.record_batch([pa.FixedSizeListArray.from_arrays(pa.array(values), 50)], names=["x"])
        kind = pa.schema([("x", pa.list_(pa.float32(), 50))])
        store = FeatureStore({str(tmp_path / "store")!r}, dtype_mapping={{"x": "float16"}})
        store.write(pa.RecordBatchReader.from_batches(kind, batches()), memory_limit=16 << 20)
        assert len(store.load()) == 500_000
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 70


def test_a_disk_that_is_too_small_is_told_before_the_work(tmp_path):
    store = FeatureStore(tmp_path / "store")
    store.write(rows(10))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(ArtifactError, match="File too large"):
            store.write(rows(5000), memory_limit=20_000)  # while rows wait beside the store
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.name for entry in sorted(store.path.iterdir())] == ["LATEST", "v000001"]


def test_ids_come_with_their_vocabulary(tmp_path):
    words = Vocabulary(["a", "b"])
    brand = Feature(
        name="brand",
        kind="categorical",
        role="item",
        source_dtype="string",
        stored_dtype="int32",
        vocabulary_size=words.size,
        vocabulary_digest=words.digest,
    )
    table = pa.table({"brand": pa.array([0, 1, 2, 1], pa.int32())})
    store = FeatureStore(tmp_path / "store")
    store.write(reader(table, 3), schema=FeatureSchema(features=(brand,)), vocabularies={"brand": words})
    loaded = store.load()
    assert loaded.ids[np.argsort(loaded.row), 0].tolist() == [0, 1, 2, 1]
