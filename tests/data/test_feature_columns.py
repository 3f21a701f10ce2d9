"""Features fitted on the training part alone, against loops over rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data import transforms
from lightning_mp.data.columns import Columns
from lightning_mp.data.feature_columns import feature_columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.errors import DataError

COLUMNS = Columns(user="uid", item="iid", time="t", event="kind")


@pytest.fixture
def rows():
    generator = np.random.default_rng()
    count = 500
    training = generator.random(count) < 0.7
    price = np.where(generator.random(count) < 0.2, np.nan, generator.lognormal(2, 1, count))
    brand = [None if x < 0.2 else f"b{generator.integers(0, 30)}" for x in generator.random(count)]
    table = pa.table(
        {
            "row": np.arange(count) * 3,
            "user": pa.array([f"u{i}" for i in generator.integers(0, 80, count)]),
            "item": generator.integers(0, 60, count),
            "time": 1_600_000_000_000_000 + generator.integers(0, 10**14, count),
            "brand": pa.array(brand, type=pa.string()),
            "price": pa.array(price, from_pandas=True),
            "stock": pa.array(generator.integers(0, 5, count)),
        }
    )
    return table, training


def one(spec, rows, columns=COLUMNS):
    return feature_columns([spec], rows[0], rows[1], columns)[0]


@pytest.mark.parametrize(
    ("spec", "column"),
    [
        (FeatureSpec(name="user", kind="id", role="user"), "user"),
        (FeatureSpec(name="item", kind="id", role="item", min_count=3), "item"),
        (FeatureSpec(name="iid", kind="categorical", role="item"), "item"),
        (FeatureSpec(name="brand", kind="categorical", role="item", max_size=8), "brand"),
        (FeatureSpec(name="maker", column="brand", kind="categorical"), "brand"),
        (FeatureSpec(name="stock", kind="categorical"), "stock"),
    ],
)
def test_indexed(rows, spec, column):
    table, training = rows
    made = one(spec, rows)
    values = table[column].to_pylist()
    seen = [v for v, t in zip(values, training, strict=True) if t and v is not None]
    counts = {v: seen.count(v) for v in set(seen)}
    kept = sorted((v for v in counts if counts[v] >= spec.min_count), key=lambda v: (-counts[v], v))
    kept = kept[: None if spec.max_size is None else spec.max_size - 1]
    assert made.vocabulary.entries.tolist() == kept
    assert made.values.tolist() == [kept.index(v) + 1 if v in kept else 0 for v in values]
    assert made.values.dtype == np.int32
    feature = made.feature
    assert (feature.name, feature.kind, feature.role, feature.stored_dtype) == (
        spec.name,
        spec.kind,
        spec.role,
        "int32",
    )
    assert (feature.vocabulary_size, feature.vocabulary_digest) == (len(kept) + 1, made.vocabulary.digest)
    assert feature.source_dtype == ("int64" if column in ("item", "stock") else "string")


@pytest.mark.parametrize("kind", ["none", "zscore", "log1p", "log1p_zscore", "signed_log", "linear"])
@pytest.mark.parametrize(("missing", "value"), [("mean", None), ("constant", 7.5)])
def test_numeric(rows, kind, missing, value):
    table, training = rows
    made = one(FeatureSpec(name="price", kind="numeric", transform=kind, missing=missing, missing_value=value), rows)
    raw = np.array([np.nan if v is None else v for v in table["price"].to_pylist()])
    fill = np.nanmean(raw[training]) if missing == "mean" else 7.5
    filled = np.where(np.isnan(raw), fill, raw)
    expected = transforms.apply(transforms.fit(kind, filled[training]), filled)
    np.testing.assert_allclose(made.values, expected, rtol=1e-12, atol=1e-12)
    assert made.feature.missing_value == pytest.approx(fill)
    assert (made.feature.missing, made.feature.transform.kind, made.feature.source_dtype) == (missing, kind, "double")


def test_nothing_is_fitted_on_later_rows(rows):
    table, training = rows
    specs = [
        FeatureSpec(name="user", kind="id", role="user"),
        FeatureSpec(name="brand", kind="categorical"),
        FeatureSpec(name="price", kind="numeric"),
    ]
    first = feature_columns(specs, table, training, COLUMNS)
    changed = table.set_column(
        table.column_names.index("price"),
        "price",
        pa.array([v if t else 1e9 for v, t in zip(table["price"].to_pylist(), training, strict=True)]),
    )
    changed = changed.set_column(
        changed.column_names.index("brand"),
        "brand",
        pa.array([v if t else "new" for v, t in zip(table["brand"].to_pylist(), training, strict=True)]),
    )
    second = feature_columns(specs, changed, training, COLUMNS)
    assert [column.feature for column in first] == [column.feature for column in second]
    assert (second[1].values[~training] == 0).all()


@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "Australia/Lord_Howe"])
def test_calendar(rows, zone):
    table, _ = rows
    columns = Columns(user="uid", item="iid", time="t", event="kind", time_zone=zone)
    hour = one(FeatureSpec(name="hour", kind="categorical", of="hour"), rows, columns)
    weekday = one(FeatureSpec(name="day", kind="categorical", of="weekday"), rows, columns)
    moments = [
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=t)).astimezone(ZoneInfo(zone or "UTC"))
        for t in table["time"].to_pylist()
    ]
    assert hour.vocabulary.decode(hour.values).tolist() == [moment.hour for moment in moments]
    assert weekday.vocabulary.decode(weekday.values).tolist() == [moment.weekday() for moment in moments]
    assert (hour.feature.vocabulary_size, weekday.feature.vocabulary_size) == (25, 8)


@pytest.mark.parametrize(
    ("scale", "dtype", "expected"),
    [(1.0, "auto", "float16"), (1e-7, "auto", "float32"), (1e6, "auto", "float32"), (1e-7, "float16", "float16"),
     (1.0, "float32", "float32")],
)  # fmt: skip
def test_stored_dtype(rows, scale, dtype, expected):
    table, training = rows
    values = pa.array(np.random.default_rng().uniform(1, 2, len(training)) * scale)
    table = table.set_column(table.column_names.index("price"), "price", values)
    made = one(FeatureSpec(name="price", kind="numeric", transform="none", dtype=dtype), (table, training))
    assert made.feature.stored_dtype == expected
    assert "as float16: " in made.note


def test_refusals(rows):
    table, training = rows
    with pytest.raises(DataError, match=r"feature `price` is missing in [\d,]+ of 500 rows, first in row"):
        one(FeatureSpec(name="price", kind="numeric", missing="refuse"), rows)
    with pytest.raises(DataError, match=r"feature `brand` is missing in [\d,]+ of 500 rows"):
        one(FeatureSpec(name="brand", kind="categorical", missing="refuse"), rows)
    place = table.column_names.index("price")
    empty = table.set_column(place, "price", pa.nulls(500, pa.float64()))
    with pytest.raises(DataError, match=r"feature `price` has no value in \d+ training rows"):
        one(FeatureSpec(name="price", kind="numeric"), (empty, training))
    negative = table.set_column(place, "price", pa.array(np.full(500, -1.0)))
    with pytest.raises(DataError, match=r"feature `price`: `log1p` is for numbers from 0 on, .* the smallest -1"):
        one(FeatureSpec(name="price", kind="numeric", transform="log1p"), (negative, training))
    with pytest.raises(DataError, match="weight `price` is -1 at row 0; weights start at 0"):
        one(FeatureSpec(name="price", kind="numeric", role="weight"), (negative, training))
