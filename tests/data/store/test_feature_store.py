from __future__ import annotations

import json
import os
import pickle
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ArtifactError, ConfigurationError, DataError, LightningMPError, SchemaError
from lightning_mp.schema import Feature, FeatureSchema


def number(name, dtype="float16", role="context", width=1):
    kind = "numeric" if width == 1 else "vector"
    return Feature(name=name, kind=kind, role=role, source_dtype="double", stored_dtype=dtype, width=width)


def category(name, vocabulary):
    return Feature(
        name=name,
        kind="categorical",
        role="user",
        source_dtype="string",
        stored_dtype="int32",
        vocabulary_size=vocabulary.size,
        vocabulary_digest=vocabulary.digest,
    )


USERS = Vocabulary(["ada", "grace", "edsger"])
SCHEMA = FeatureSchema(
    features=(
        number("price"),
        category("user", USERS),
        number("click", "float32", role="label"),
        number("age", "float32"),
        number("taste", "float16", width=3),
        number("importance", "float32", role="weight"),
    )
)


def table(rows, seed=None):
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "price": draw.normal(size=rows) * 10.0 ** draw.integers(-8, 4, rows),
            "user": pa.array(draw.integers(0, USERS.size, rows), pa.int32()),
            "click": draw.integers(0, 2, rows).astype(np.float64),
            "age": draw.normal(size=rows),
            "taste": pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=3 * rows)), 3),
            "importance": draw.random(rows),
            "@time": draw.integers(0, 2**50, rows),
            "@row": draw.permutation(10 * rows)[:rows],
            "@user": draw.integers(0, 5, rows),
            "@item": draw.integers(0, 7, rows),
        }
    )


@pytest.fixture
def parts():
    return {"train": table(101), "validation": table(1), "test": table(30)}


@pytest.fixture
def store(tmp_path, parts):
    store = FeatureStore(tmp_path / "store")
    store.write(
        parts,
        schema=SCHEMA,
        vocabularies={"user": USERS},
        users=pa.array(["ada", "grace", "edsger", "new", "newer"]),
        items=pa.array(range(7)),
        source={"key": "abc"},
    )
    return store


def by_source_row(loaded, values):
    return values[np.argsort(loaded.row)]


@pytest.mark.parametrize("memory_map", [True, False])
def test_every_cell_comes_back_as_numpy_would_store_it(store, parts, memory_map):
    for split, part in parts.items():
        loaded = store.load(split, memory_map=memory_map)
        written = part.take(np.argsort(part["@row"].to_numpy()))
        taste = written["taste"].combine_chunks().flatten().to_numpy().reshape(-1, 3)
        dense = np.column_stack([written["price"], written["age"], taste]).astype(np.float32)
        halves = [0, 2, 3, 4]
        dense[:, halves] = dense[:, halves].astype(np.float16).astype(np.float32)
        assert len(loaded) == written.num_rows
        assert by_source_row(loaded, loaded.dense).tobytes() == dense.tobytes()
        assert by_source_row(loaded, loaded.ids)[:, 0].tolist() == written["user"].to_pylist()
        assert by_source_row(loaded, loaded.labels)[:, 0].tolist() == written["click"].to_pylist()
        assert np.array_equal(by_source_row(loaded, loaded.weight), written["importance"].to_numpy().astype("f4"))
        for name in ("time", "row", "user", "item"):
            assert by_source_row(loaded, getattr(loaded, name)).tolist() == written[f"@{name}"].to_pylist()


def test_float16_comes_back_bit_for_bit(tmp_path):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    store = FeatureStore(tmp_path / "store", "binary", {"x": "float16"})
    store.write(pa.table({"x": finite}))
    loaded = store.load()
    assert by_source_row(loaded, loaded.dense).tobytes() == finite.tobytes()


def test_layout_on_disk(store):
    folder = store.path / "v000001"
    assert (store.path / "LATEST").read_text() == "v000001\n"
    names = {"manifest.json", "users.arrow", "items.arrow", "vocabulary-00000.arrow"}
    assert {f.name for f in folder.iterdir()} == names | {f"part-0000{i}.arrow" for i in range(3)}
    with pa.ipc.open_file(folder / "part-00000.arrow") as reader:
        assert reader.num_record_batches == 1
        fields = {
            f.name: (f.type.value_type, f.type.list_size, f.nullable, f.type.value_field.nullable)
            for f in reader.schema
        }
    assert fields == {
        "ids": (pa.int32(), 1, False, False),
        "dense16": (pa.float16(), 4, False, False),
        "dense32": (pa.float32(), 1, False, False),
        "labels": (pa.float32(), 1, False, False),
        "weight": (pa.float32(), 1, False, False),
        "keys": (pa.int64(), 4, False, False),
    }
    record = json.loads((folder / "manifest.json").read_text())
    assert record["schema_digest"] == SCHEMA.digest == store.schema.digest
    assert record["source"] == {"key": "abc"}
    assert set(record["files"]) == {f.name for f in folder.iterdir()} - {"manifest.json"}


def test_keys_and_vocabularies_come_back(store):
    assert store.users().to_pylist() == ["ada", "grace", "edsger", "new", "newer"]
    assert store.items().to_pylist() == list(range(7))
    assert store.vocabulary("user").digest == USERS.digest
    with pytest.raises(ArtifactError, match="no vocabulary of `price`; there are: `user`"):
        store.vocabulary("price")


def test_rows_are_shuffled_by_the_seed_alone(tmp_path):
    rows = {"train": table(500, 1), "test": table(500, 1)}

    def orders(seed, parts):
        store = FeatureStore(tmp_path / f"{seed}-{'-'.join(parts)}")
        store.write(parts, schema=SCHEMA, shuffle_seed=seed)
        return {split: store.load(split).row.tolist() for split in parts}

    once, reversed_parts, other = orders(3, rows), orders(3, dict(reversed(rows.items()))), orders(4, rows)
    assert once == reversed_parts
    assert once["train"] != once["test"]
    assert once["train"] != other["train"]
    assert sorted(once["train"]) == sorted(rows["train"]["@row"].to_pylist()) != once["train"]


def test_matrices_are_written_to_in_memory_only(store):
    before = {f: f.read_bytes() for f in (store.path / "v000001").iterdir()}
    loaded = store.load()
    matrix = loaded.group("dense16")
    matrix += np.float16(1)
    assert np.shares_memory(matrix, loaded.group("dense16"))
    assert not np.array_equal(store.load().group("dense16"), matrix)
    assert {f: f.read_bytes() for f in before} == before


def test_a_pickle_holds_the_path_and_not_the_rows(store):
    loaded = store.load()
    dense = loaded.dense
    pickled = pickle.dumps(loaded)
    assert len(pickled) < 3000
    assert np.array_equal(pickle.loads(pickled).dense, dense)
    assert pickle.loads(pickle.dumps(store)).schema == SCHEMA


def test_one_type_of_dense_column_is_a_view(tmp_path):
    for dtype in ("float16", "float32"):
        store = FeatureStore(tmp_path / dtype, dtype_mapping={"x": dtype, "y": dtype})
        store.write(pa.table({"x": [1.0, 2.0], "y": [3.0, 4.0]}))
        loaded = store.load()
        assert loaded.dense.dtype == dtype
        assert np.shares_memory(loaded.dense, loaded.dense)


def test_a_split_without_rows(tmp_path):
    store = FeatureStore(tmp_path / "store")
    store.write({"train": table(3), "validation": table(3).slice(0, 0)}, schema=SCHEMA)
    loaded = store.load("validation")
    assert (len(loaded), loaded.dense.shape, loaded.ids.shape, loaded.row.shape) == (0, (0, 5), (0, 1), (0,))


def test_old_versions_stay(store, parts):
    first = store.load()
    assert store.write(parts, schema=SCHEMA, shuffle_seed=1) == 2
    assert store.versions() == (1, 2)
    assert store.manifest.version == 2
    assert store.load(version=1).row.tolist() == first.row.tolist() != store.load().row.tolist()
    with pytest.raises(ArtifactError, match="no version 3; there are: 1, 2"):
        store.load(version=3)


def test_plain_table_of_every_type(tmp_path):
    rows = pa.table(
        {
            "brand": ["b", "a", "b"],
            "shop": pa.array([7, 7, -3]),
            "seen": [True, False, True],
            "count": pa.array([1, 2, 70000]),
            "price": pa.array([0.5, 1.5, 2.5], pa.float16()),
            "embedding": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        }
    )
    store = FeatureStore(tmp_path / "store", dtype_mapping={"count": "float32", "embedding": "float16"})
    store.write(rows)
    loaded = store.load()
    kinds = {f.name: (f.kind, f.stored_dtype, f.width) for f in store.schema.features}
    assert kinds == {
        "brand": ("categorical", "int32", 1),
        "shop": ("categorical", "int32", 1),
        "seen": ("categorical", "int32", 1),
        "count": ("numeric", "float32", 1),
        "price": ("numeric", "float16", 1),
        "embedding": ("vector", "float16", 2),
    }
    ids = by_source_row(loaded, loaded.ids)
    assert store.vocabulary("brand").decode(ids[:, 0]).tolist() == ["b", "a", "b"]
    assert store.vocabulary("shop").decode(ids[:, 1]).tolist() == [7, 7, -3]
    assert by_source_row(loaded, loaded.dense)[2].tolist() == [70000, 2.5, 5, 6]
    with pytest.raises(DataError, match="column `when` holds timestamp"):
        store.write(pa.table({"when": pa.array([0], pa.timestamp("us"))}))


def test_overflow_is_refused_by_name_value_limit_and_row(tmp_path):
    rows = table(9, 0).set_column(0, "price", pa.array([1.0] * 4 + [65519.9, -65520.0, 7e4, 1.0, 1.0]))
    row = rows["@row"][5].as_py()
    with pytest.raises(DataError) as caught:
        FeatureStore(tmp_path / "store").write({"test": rows}, schema=SCHEMA)
    assert caught.value.problem == (
        f"feature `price` has -65520 at row {row} of the source (test rows), and 1 more: "
        "it is beyond float16's largest, 65504"
    )
    assert "on_overflow" in caught.value.hint
    assert list((tmp_path).iterdir()) == []


def test_overflow_widens_the_feature_or_clips_it(tmp_path):
    rows = pa.table({"price": [1.0, 65519.9, -65520.0, 7e4], "age": [1.0, 2.0, 3.0, 4.0]})
    store = FeatureStore(tmp_path / "store", dtype_mapping={"price": "float16", "age": "float16"})
    store.write(rows, on_overflow="float32")
    assert [f.stored_dtype for f in store.schema.features] == ["float32", "float16"]
    assert store.load().dense.max() == 7e4
    store.write(rows, on_overflow="clip")
    loaded = store.load()
    assert by_source_row(loaded, loaded.dense)[:, 0].tolist() == [1, 65504, -65504, 65504]
    assert store.manifest.clipped == {"price": 2}
    with pytest.raises(ConfigurationError, match="`on_overflow` must be 'raise', 'float32' or 'clip', got 'ignore'"):
        store.write(rows, on_overflow="ignore")


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.array([1.0, float("nan"), 2.0]), "feature `x` has nan at row 1 (train rows): it is not a finite number"),
        (pa.array([1.0, 2.0, float("-inf")]), "feature `x` has -inf at row 2 (train rows): it is not a finite number"),
        (pa.array([1.0, 2.0, 1e39]), "feature `x` has 1e+39 at row 2 (train rows): it is beyond float32's largest"),
        (pa.array([1.0, None, 2.0]), "feature `x` is missing at row 1 (train rows); a store holds no nulls"),
        (pa.array([[1.0, 2.0], [3.0], [4.0, 5.0]]), "feature `x` (train rows) has a list of 1 numbers, its width is 2"),
        (pa.array([[1.0, 2.0], [3.0, None], [4.0, 5.0]]), "feature `x` (train rows) has missing numbers in its lists"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path, column, problem):
    with pytest.raises(DataError) as caught:
        FeatureStore(tmp_path / "store").write(pa.table({"x": column}))
    assert caught.value.problem.startswith(problem)
    assert not (tmp_path / "store").exists() or list((tmp_path / "store").iterdir()) == []


def test_ids_outside_their_vocabulary_are_named(tmp_path):
    rows = table(3, 0).set_column(1, "user", pa.array([0, 4, -1], pa.int32()))
    with pytest.raises(
        DataError, match=r"feature `user` has 4 at row .* it is outside its vocabulary of 4 rows \(0 to 3\)"
    ):
        FeatureStore(tmp_path / "store").write({"train": rows}, schema=SCHEMA)
    assert not (tmp_path / "store").exists()
    with pytest.raises(SchemaError, match="vocabulary of feature `user` has 2 rows"):
        FeatureStore(tmp_path / "store").write(
            {"train": table(3)}, schema=SCHEMA, vocabularies={"user": Vocabulary(["ada"])}
        )
    with pytest.raises(DataError, match="the train rows have no column `age`"):
        FeatureStore(tmp_path / "store").write({"train": table(3).drop_columns("age")}, schema=SCHEMA)


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ConfigurationError, match="`storage_format` must be 'binary' or 'parquet', got 'csv'"):
        FeatureStore(tmp_path, storage_format="csv")
    with pytest.raises(
        ConfigurationError, match="`dtype_mapping` of `x` must be 'float16', 'float32' or 'auto', got 'int8'"
    ):
        FeatureStore(tmp_path, dtype_mapping={"x": "int8"})
    with pytest.raises(ConfigurationError, match="`dtype_mapping` names `pric`") as caught:
        FeatureStore(tmp_path, dtype_mapping={"pric": "float16"}).write({"train": table(2)}, schema=SCHEMA)
    assert caught.value.hint == "did you mean `price`?"
    with pytest.raises(ConfigurationError, match="several splits need a `schema`"):
        FeatureStore(tmp_path).write({"train": table(2), "test": table(2)})


def test_no_store_and_a_damaged_pointer(tmp_path, store):
    assert not FeatureStore(tmp_path).exists
    with pytest.raises(ArtifactError, match="holds no `LATEST`: it is not a feature store"):
        FeatureStore(tmp_path).load()
    with pytest.raises(ArtifactError, match="has no split `tests`; it has `test`, `train`, `validation`"):
        store.load("tests")
    (store.path / "LATEST").write_text("garbage")
    with pytest.raises(ArtifactError, match="holds 'garbage', not a version"):
        store.load()


def test_a_file_cut_short_is_refused_at_opening(store):
    part = store.path / "v000001" / "part-00000.arrow"
    loaded = store.load()
    os.truncate(part, part.stat().st_size - 8)
    with pytest.raises(ArtifactError, match=r"part-00000.arrow` has .* bytes, its manifest says"):
        store.load("test")
    with pytest.raises(ArtifactError, match="its manifest says"):
        _ = loaded.dense
    part.unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        store.load()


def test_every_flipped_bit_is_found_by_verify(store):
    store.verify()
    folder = store.path / "v000001"
    draw = np.random.default_rng()
    for file in sorted(folder.glob("*.arrow")):
        whole = file.read_bytes()
        for position in draw.integers(0, len(whole), 20):
            file.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
            with pytest.raises(ArtifactError, match=f"{file.name}` does not match its digest"):
                store.verify()
        file.write_bytes(whole)
    store.verify()


def test_a_manifest_that_was_altered(store):
    file = store.path / "v000001" / "manifest.json"
    text = file.read_text()
    changes = {
        '"format": 1': ('"format": 2', "of format 2, this package reads up to 1"),
        '"name": "price"': ('"name": "pride"', "does not match its digest"),
        '"version": 1,': ('"versoin": 1,', "unknown"),
        '"file": "part-00002.arrow"': ('"file": "part-00001.arrow"', "rows, its manifest says"),
    }
    for old, (new, problem) in changes.items():
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(LightningMPError, match=problem):
            _ = store.load("test").dense
    file.write_text(text[:50])
    with pytest.raises(ArtifactError, match="is not JSON"):
        store.load()


def test_a_full_disk_leaves_the_old_version(store, parts):
    before = sorted(store.path.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ArtifactError, match="File too large"):
            store.write(parts, schema=SCHEMA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(store.path.rglob("*")) == before
    store.verify()


def test_a_killed_writer_leaves_the_old_version_and_no_litter(store, parts):
    program = textwrap.dedent(f"""
        import os, pyarrow as pa
        from lightning_mp.data.store import version_writer
        from lightning_mp.data.store.feature_store import FeatureStore
        write, calls = version_writer.write_batch, []
        def killed(path, batch):
            write(path, batch)
            os._exit(9)
        version_writer.write_batch = killed
        FeatureStore({str(store.path)!r}).write(pa.table({{"x": [1.0]}}))
    """)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert len(list(store.path.glob(".lightning_mp-tmp-*"))) == 1
    assert store.versions() == (1,)
    store.verify()
    store.write(parts, schema=SCHEMA)
    assert list(store.path.glob(".lightning_mp-tmp-*")) == []


def test_the_second_of_two_writers_is_told(store, parts):
    (store.path / "v000002").mkdir()
    with pytest.raises(ArtifactError, match="v000002` is there already"):
        store.write(parts, schema=SCHEMA)
    assert store.manifest.version == 1


def test_the_store_imports_no_torch():
    program = "import sys, lightning_mp.data.store.feature_store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=Path.cwd()).returncode == 0
