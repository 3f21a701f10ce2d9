from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ArtifactError, DataError

FORMATS = ["binary", "parquet"]


def back(store, split="train"):
    loaded = store.load(split)
    return loaded.dense[np.argsort(loaded.row)]


@pytest.mark.parametrize("storage_format", FORMATS)
@pytest.mark.parametrize("width", [1, 4])
def test_every_bit_pattern_of_float16_comes_back(tmp_path, storage_format, width):
    # All 65,536: NaN payloads, quiet and signalling, -0.0, subnormals, both infinities.
    every = np.random.default_rng().permutation(np.arange(2**16, dtype=np.uint16)).view(np.float16)
    column = pa.array(every) if width == 1 else pa.FixedSizeListArray.from_arrays(pa.array(every), width)
    store = FeatureStore(tmp_path / "store", storage_format, {"x": "float16"})
    store.write(pa.table({"x": column}), on_nonfinite="keep")
    assert back(store).view(np.uint16).tolist() == every.view(np.uint16).reshape(-1, width).tolist()
    store.verify()


@pytest.mark.parametrize("storage_format", FORMATS)
def test_wider_numbers_are_rounded_as_numpy_and_torch_round(tmp_path, storage_format):
    import torch

    draw = np.random.default_rng()
    exponents = draw.integers(-30, 15, 5000).astype(float)
    values = draw.normal(size=5000) * 2.0**exponents
    values = values[np.abs(values) < 65504]
    store = FeatureStore(tmp_path / "store", storage_format, {"x": "float16"})
    store.write(pa.table({"x": values}))
    expected = values.astype(np.float32).astype(np.float16)
    assert back(store)[:, 0].tobytes() == expected.tobytes()
    assert torch.tensor(values, dtype=torch.float32).half().numpy().tobytes() == expected.tobytes()


def test_parquet_reads_by_name_anywhere_and_equals_the_binary_form(tmp_path):
    draw = np.random.default_rng()
    rows = pa.table(
        {
            "price": pa.array(draw.normal(size=500).astype(np.float16)),
            "taste": pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=1500).astype(np.float16)), 3),
            "age": draw.normal(size=500).astype(np.float32),
            "brand": draw.choice(["a", "b", "c"], 500),
        }
    )
    stores = {name: FeatureStore(tmp_path / name, name) for name in FORMATS}
    for store in stores.values():
        store.write(rows, shuffle_seed=3)
    binary, parquet = (store.load() for store in stores.values())
    for group in ("ids", "dense16", "dense32", "keys"):
        assert binary.group(group).tobytes() == parquet.group(group).tobytes()
    table = pq.read_table(tmp_path / "parquet" / "v000001" / "part-00000.parquet")
    assert table.schema.field("price").type == pa.float16()
    assert table.schema.field("taste").type.value_type == pa.float16()
    order = np.argsort(table["@row"].to_numpy())
    assert table["price"].to_numpy()[order].tobytes() == rows["price"].to_numpy().tobytes()
    assert stores["parquet"].manifest.storage_format == "parquet"


def test_flipped_bits_in_parquet_are_never_read_as_numbers(tmp_path):
    draw = np.random.default_rng()
    store = FeatureStore(tmp_path / "store", "parquet", {"x": "float16"})
    store.write(pa.table({"x": draw.normal(size=3000), "brand": draw.integers(0, 50, 3000)}))
    part = store.path / "v000001" / "part-00000.parquet"
    whole, before = part.read_bytes(), store.load().dense.tobytes()
    for position in draw.integers(0, len(whole), 60):
        part.write_bytes(whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :])
        with pytest.raises(ArtifactError, match="does not match its digest"):
            store.verify()
        with suppress(ArtifactError):  # or the bit says nothing of the numbers
            assert store.load().dense.tobytes() == before


@pytest.mark.parametrize("storage_format", FORMATS)
def test_nonfinite_numbers_are_refused_unless_they_are_wanted(tmp_path, storage_format):
    rows = pa.table({"x": [1.0, float("inf"), float("nan"), -1.0, 7e4]})
    store = FeatureStore(tmp_path / "store", storage_format, {"x": "float16"})
    with pytest.raises(DataError, match=r"feature `x` has inf at row 1 \(train rows\), and 1 more: it is not a finite"):
        store.write(rows)
    with pytest.raises(DataError, match=r"feature `x` has 70000 at row 4 \(train rows\): it is beyond float16"):
        store.write(rows, on_nonfinite="keep")
    store.write(rows, on_nonfinite="keep", on_overflow="clip")
    assert np.array_equal(back(store)[:, 0], [1.0, np.inf, np.nan, -1.0, 65504.0], equal_nan=True)
    assert store.manifest.clipped == {"x": 1}


def test_auto_takes_float16_only_where_nothing_is_lost(tmp_path):
    draw = np.random.default_rng()
    columns = {
        "exact": draw.integers(0, 2048, 900) * 1.0,
        "near": draw.normal(size=900),
        "huge": np.append(draw.normal(size=899), 7e4),
        "tiny": draw.normal(size=900) * 1e-7,
        "flushed": np.append(draw.normal(size=899), 1e-9),
        "half": draw.normal(size=900).astype(np.float16),
        "wide": pa.FixedSizeListArray.from_arrays(pa.array(draw.normal(size=1800)), 2),
    }
    store = FeatureStore(tmp_path / "store", dtype_mapping={"*": "auto", "wide": "float32"})
    store.write(pa.table(columns))
    stored = {feature.name: feature.stored_dtype for feature in store.schema.features}
    assert stored == {
        "exact": "float16",
        "near": "float16",
        "huge": "float32",
        "tiny": "float32",
        "flushed": "float32",
        "half": "float16",
        "wide": "float32",
    }
    notes = store.manifest.notes
    assert notes["huge"].startswith("float32: in float16 1 rows would overflow")
    assert "1 rows would become zero" in notes["flushed"]
    assert "mean relative error" in notes["near"]
    assert "near: float16: in float16" in str(store.info())
