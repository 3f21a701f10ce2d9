"""Logs in several files, tables beside them, sessions, negatives and the embargo, through `prepare`, against loops."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from lightning_mp.data.attribute_table import AttributeTable
from lightning_mp.data.columns import Columns, ConstantEvent
from lightning_mp.data.events import read_events
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel, PreferenceLabel
from lightning_mp.data.negatives import Negatives
from lightning_mp.data.prepare import prepare
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.errors import ConfigurationError, DataError

DAY = 86_400
LONG = Columns(user="u", item="i", time="t", event="kind")
ORDERS = Columns(user="u", item="i", time="t", event=ConstantEvent(constant="order"))
IDS = [FeatureSpec(name="u", kind="id", role="user"), FeatureSpec(name="i", kind="id", role="item")]


def log(rows=1200):
    generator = np.random.default_rng(7)  # of few rows some draws have no click within a day, or an empty part
    return pa.table(
        {
            "u": [f"u{k}" for k in generator.integers(0, 40, rows)],
            "i": [f"i{k}" for k in generator.integers(0, 30, rows)],
            "t": 1_700_000_000 + generator.integers(0, 40 * DAY, rows),
            "kind": generator.choice(["view", "click", "order"], rows, p=[0.7, 0.2, 0.1]),
            "basket": generator.integers(0, 300, rows),
            "price": np.round(generator.lognormal(2, 1, rows), 2),
        }
    )


def rows_of(store, names):
    """Stored rows by part: ids and numbers as raw values."""
    found = []
    for part in store.manifest.splits:
        table = store.load(part)
        columns = {}
        for place, feature in enumerate(store.schema.ids):
            columns[feature.name] = store.vocabulary(feature.name).decode(np.array(table.ids)[:, place]).tolist()
        for place, feature in enumerate(store.schema.dense):
            columns[feature.name] = np.array(table.dense)[:, place].astype(float).tolist()
        columns["part"] = [part] * len(table)
        columns["row"], columns["time"] = np.array(table.row).tolist(), np.array(table.time).tolist()
        columns["label"] = np.array(table.labels)[:, 0].tolist()
        columns["item"] = [store.items()[code].as_py() for code in np.array(table.item).tolist()]
        columns["user"] = [store.users()[code].as_py() for code in np.array(table.user).tolist()]
        found += list(zip(*(columns[name] for name in names), strict=True))
    return sorted(found)


def test_several_files_and_kinds_of_file_give_the_same_log(tmp_path):
    table = log()
    csv.write_csv(table.slice(0, 500), tmp_path / "a1.csv")
    csv.write_csv(table.slice(500), tmp_path / "a2.csv")
    csv.write_csv(table, tmp_path / "whole.csv")
    (tmp_path / "whole.jsonl").write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    settings = {"columns": LONG, "attributes": {"price": "double"}}
    whole = read_events(tmp_path / "whole.csv", **settings)
    for path in ([tmp_path / "a1.csv", tmp_path / "a2.csv"], str(tmp_path / "a*.csv"), tmp_path / "whole.jsonl"):
        found = read_events(path, **settings)
        assert found.table.equals(whole.table)
        assert (found.rows, found.counts) == (whole.rows, whole.counts)
    with pytest.raises(DataError, match="no file fits"):
        read_events(str(tmp_path / "b*.csv"), **settings)
    with pytest.raises(DataError, match="is named twice"):
        read_events([tmp_path / "a1.csv", tmp_path / "a1.csv"], **settings)


def test_rejects_of_several_files_name_the_file(tmp_path):
    (tmp_path / "a.csv").write_text("u,i,t,kind\n1,2,1700000000,view\n")
    (tmp_path / "b.csv").write_text("u,i,t,kind\n1,2,never,view\n1,3,1700000000,view\n")
    files = [tmp_path / "b.csv", tmp_path / "a.csv"]
    found = read_events(files, columns=LONG, max_bad_share=0.5)
    assert found.table["row"].to_pylist() == [1, 2]
    (reject,) = found.rejects.to_pylist()
    assert (reject["line"], reject["column"], reject["file"]) == (2, "t", str(tmp_path / "b.csv"))
    with pytest.raises(DataError, match=r"1 of 3 rows are bad.*line 2 of `.*b\.csv`"):
        read_events(files, columns=LONG, max_bad_share=0)


def test_tables_are_joined_by_key_and_as_of_a_time(tmp_path):
    table = log()
    generator = np.random.default_rng(8)
    parquet.write_table(table, tmp_path / "log.parquet")
    versions = pa.table(
        {
            "who": [f"u{k}" for k in generator.integers(0, 30, 200)],
            "since": 1_700_000_000 + generator.integers(0, 40 * DAY, 200),
            "level": generator.normal(0, 1, 200),
        }
    )
    csv.write_csv(versions, tmp_path / "users.csv")
    brands = [{"sku": f"i{k}", "brand": generator.choice(["x", "y", ""]), "size": int(k)} for k in range(25)]
    (tmp_path / "items.jsonl").write_text("\n".join(json.dumps(row) for row in brands))
    features = [
        *IDS,
        FeatureSpec(name="brand", kind="categorical", role="item"),
        FeatureSpec(name="size", kind="numeric", role="item", transform="none", dtype="float32", missing="constant",
                    missing_value=-1.0, indicator=True),
        FeatureSpec(name="level", kind="numeric", role="user", transform="none", dtype="float32", missing="median"),
        FeatureSpec(name="same", kind="numeric", transform="none", history={"of": "view", "by": ["user", "brand"]}),
    ]  # fmt: skip
    store = prepare(
        tmp_path / "log.parquet", tmp_path / "store", columns=LONG, label=EventLabel(event="click", within="1d"),
        features=features, split=TimeSplit(),
        users=AttributeTable(path=str(tmp_path / "users.csv"), key="who", time="since"),
        items=AttributeTable(path=str(tmp_path / "items.jsonl"), key="sku"),
    )  # fmt: skip
    rows, brand_of = table.to_pylist(), {row["sku"]: row["brand"] or None for row in brands}
    levels = {}
    for place, row in enumerate(rows):
        known = [v for v in versions.to_pylist() if v["who"] == row["u"] and v["since"] < row["t"]]
        levels[place] = max(known, key=lambda v: v["since"])["level"] if known else None
    stored = rows_of(store, ["row", "part", "brand", "size", "size_missing", "level", "same"])
    present = [levels[row] for row, part, *_ in stored if part == "train" and levels[row] is not None]
    assert store.schema.feature("level").missing_value == pytest.approx(np.median(present))
    for place, _, brand, size, missing, level, same in stored:
        row = rows[place]
        own = brand_of.get(row["i"])
        assert brand == own
        number = int(row["i"][1:])
        assert (size, missing) == ((number, 0) if number < 25 else (-1, 1))
        assert level == pytest.approx(np.median(present) if levels[place] is None else levels[place], rel=1e-6)
        seen = [r for r in rows if r["kind"] == "view" and r["u"] == row["u"] and r["t"] < row["t"]]
        assert same == sum(brand_of.get(r["i"]) == own for r in seen)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    parquet.write_table(log(), tmp_path / "log.parquet")
    (tmp_path / "items.csv").write_text("i,brand\ni1,x\ni2,y\ni1,z\n")
    features = [*IDS, FeatureSpec(name="brand", kind="categorical", role="item")]
    settings = {"columns": LONG, "label": EventLabel(event="click", within="1d"), "features": features}
    items = AttributeTable(path=str(tmp_path / "items.csv"), key="i")
    with pytest.raises(DataError, match=r"items\.csv`, line 4: the key 'i1' of `i` stands there a second time"):
        prepare(tmp_path / "log.parquet", tmp_path / "store", items=items, **settings)
    with pytest.raises(DataError, match=r"has no column `sku`; it has `i`, `brand`"):
        prepare(tmp_path / "log.parquet", tmp_path / "s", items=AttributeTable(path=items.path, key="sku"), **settings)


def test_negatives_stand_beside_their_positive_with_what_was_known_of_the_item(tmp_path):
    table = log().drop(["kind"])
    parquet.write_table(table, tmp_path / "log.parquet")
    features = [
        *IDS,
        FeatureSpec(name="price", kind="numeric", role="item", transform="none", dtype="float32", missing="constant",
                    missing_value=-1.0),
        FeatureSpec(name="own", kind="numeric", transform="none", history={"of": "order", "by": ["user", "item"]}),
    ]  # fmt: skip
    settings = {"columns": ORDERS, "label": EventLabel(event="order"), "features": features}
    store = prepare(
        tmp_path / "log.parquet", tmp_path / "store", negatives=Negatives(per_positive=3, basket="basket"), **settings
    )
    rows = table.to_pylist()
    stored = rows_of(store, ["row", "label", "item", "user", "time", "price", "own"])
    taken = {(row["basket"], row["u"]): {r["i"] for r in rows if (r["basket"], r["u"]) == (row["basket"], row["u"])}
             for row in rows}  # fmt: skip
    assert Counter(label for _, label, *_ in stored) == {1.0: 1200, 0.0: 3600}
    assert [place for place, *_ in stored] == list(range(4800))
    at = {(r["u"], r["t"] * 1_000_000): r for r in rows}
    for place, label, item, user, time, price, own in stored:
        row = rows[place] if label else at[user, time]
        assert (user, time) == (row["u"], row["t"] * 1_000_000)
        if label:
            assert (item, price) == (row["i"], pytest.approx(row["price"]))
        else:
            assert any(item not in taken[r["basket"], user] for r in rows if (r["u"], r["t"]) == (user, row["t"]))
            earlier = [r for r in rows if r["i"] == item and r["t"] < row["t"]]
            assert price == pytest.approx(max(earlier, key=lambda r: r["t"])["price"] if earlier else -1.0)
        assert own == sum((r["u"], r["i"]) == (user, item) and r["t"] < row["t"] for r in rows)
    with pytest.raises(ConfigurationError, match="`negatives` are for a log of what was taken"):
        prepare(
            tmp_path / "log.parquet", tmp_path / "s", negatives=Negatives(), **{**settings, "label": PreferenceLabel()}
        )


def test_no_training_label_looks_past_a_cut(tmp_path):
    table = log(4000)
    parquet.write_table(table, tmp_path / "log.parquet")
    settings = {"columns": LONG, "label": EventLabel(event="click", within="2d"), "features": IDS}
    store = prepare(tmp_path / "log.parquet", tmp_path / "store", **settings)
    times = {part: np.array(store.load(part).time) for part in store.manifest.splits}
    assert times["train"].max() + 2 * DAY * 1_000_000 < times["validation"].min()
    assert times["validation"].max() + 2 * DAY * 1_000_000 < times["test"].min()
    source = store.manifest.source
    kept = sum(part["rows"] for part in source["parts"].values())
    assert kept + source["embargoed"] == source["counts"]["view"]
    assert source["censored"] == np.count_nonzero(
        times["test"] > max(t.max() for t in times.values()) - 2 * DAY * 10**6
    )
    none = prepare(tmp_path / "log.parquet", tmp_path / "n", split=TimeSplit(embargo="0s"), **settings)
    assert none.manifest.source["embargoed"] == 0
    with pytest.raises(DataError, match="an embargo of 960 hours leaves no"):
        prepare(tmp_path / "log.parquet", tmp_path / "x", split=TimeSplit(embargo="40d"), **settings)


@pytest.mark.parametrize("order", [1, -1])
def test_exact_duplicates_are_counted_and_the_order_of_the_file_changes_nothing(shared, tmp_path, order):
    text = (shared / "cases" / "duplicates_out_of_order.csv").read_text().splitlines()
    more = [
        f"u{k},i{k},{kind},2026-03-0{k}T1{k}:00:00Z,1,a,b,1"
        for k in range(2, 8)
        for kind in ("view", "order")[: 1 + k % 2]
    ]
    path = tmp_path / "log.csv"
    path.write_text("\n".join([text[0], *(text[1:] + more)[::order]]))
    columns = Columns(user="user_id", item="item_id", time="timestamp", event="event")
    features = [
        FeatureSpec(name="user_id", kind="id", role="user"),
        FeatureSpec(name="views", kind="numeric", transform="none", history={"of": "view", "by": ["user"]}),
        FeatureSpec(name="idle", kind="numeric", transform="none", dtype="float32", missing="constant",
                    missing_value=-1.0, history={"of": "view", "by": ["user"], "as": "recency"}),
    ]  # fmt: skip
    store = prepare(
        path, tmp_path / "store", columns=columns, features=features, label=PreferenceLabel(),
        split=TimeSplit(validation=0, at="2026-03-06"),
    )  # fmt: skip
    assert store.manifest.source["log_notes"]["duplicates"].startswith("1 rows repeat")
    found = rows_of(store, ["user", "views", "idle", "label"])
    assert found == [("u1", 0.0, -1.0, 1.0), *((f"u{k}", 0.0, -1.0, float(k % 2)) for k in range(2, 8))]


def test_rees46_brands_filled_by_category(shared, tmp_path):
    features = [
        FeatureSpec(name="product_id", kind="id", role="item"),
        FeatureSpec(name="brand", kind="categorical", role="item", missing="mode",
                    missing_by=("category_id", "category_code")),
    ]  # fmt: skip
    store = prepare(
        shared / "data" / "rees46" / "2019-Oct_head.csv", tmp_path / "store", features=features,
        label=PreferenceLabel(),
        columns=Columns(user="user_id", item="product_id", time="event_time", event="event_type"),
        event_map={"purchase": "order"}, split=TimeSplit(),
    )  # fmt: skip
    filled = store.manifest.source["filled"]["brand"]
    assert set(filled) == {"category_id", "category_code", "category_code, 1 up", "all rows"}
    assert filled["category_id"] > sum(filled.values()) * 0.8
    assert "nothing: it stays unknown" not in filled
    assert FeatureStore(tmp_path / "store").schema.feature("brand").missing == "mode"
