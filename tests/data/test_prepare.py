"""The way from a log to a store, once, whole or not at all, and against loops over rows."""

# ruff: noqa: E501  tables of cases read better in one line each
from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightning_mp.data.columns import Columns, ConstantEvent, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel, PreferenceLabel, TakenLabel, TasksLabel, ValueLabel
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.data.prepare import prepare
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.errors import ArtifactError, ConfigurationError, DataError, LeakageError

FEATURES = [
    FeatureSpec(name="user", kind="id", role="user"),
    FeatureSpec(name="item", kind="id", role="item"),
    FeatureSpec(name="brand", kind="categorical", role="item"),
    FeatureSpec(name="hour", kind="categorical", of="hour"),
    FeatureSpec(name="price", kind="numeric", role="item", transform="log1p_zscore"),
    FeatureSpec(name="dwell", kind="numeric"),
]
LONG = Columns(user="u", item="i", time="t", event="kind")
WIDE = Columns(user="u", item="i", time="t", event=EventFlags(flags={"click": "clicked", "order": "bought"}))
WEIGHTS = {"order": 2.0, "cart": 1.0, "click": 0.2}


def log(rows=2000, seed=None):
    generator = np.random.default_rng(seed)
    clicked = generator.random(rows) < 0.3
    brand = [None if x < 0.2 else f"b{generator.integers(0, 9)}" for x in generator.random(rows)]
    return pa.table(
        {
            "u": [f"u{i}" for i in generator.integers(0, 60, rows)],
            "i": generator.integers(0, 40, rows),
            "t": 1_700_000_000 + generator.integers(0, 50_000, rows),
            "kind": generator.choice(["view", "click", "cart", "purchase"], rows, p=[0.7, 0.2, 0.06, 0.04]),
            "clicked": clicked,
            "bought": clicked & (generator.random(rows) < 0.2),
            "rating": pa.array(generator.integers(1, 6, rows) / 1.0, mask=generator.random(rows) < 0.1),
            "brand": pa.array(brand, type=pa.string()),
            "price": np.round(generator.lognormal(2, 1, rows), 2),
            "dwell": pa.array(generator.normal(30, 9, rows), mask=generator.random(rows) < 0.1),
        }
    )


@pytest.fixture
def table():
    return log()


@pytest.fixture
def path(tmp_path, table):
    parquet.write_table(table, tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def run(path, store, **changes):
    settings = {"columns": LONG, "label": EventLabel(event="click", within="3h"), "features": FEATURES,
                "event_map": {"purchase": "order"}, "split": TimeSplit(embargo="0s")}  # fmt: skip
    return prepare(path, store, **{**settings, **changes})


def by_row(store):
    """What the store holds, by row of the log: part, label, user, item, raw brand and hour, stored numbers."""
    users, items = store.users().to_pylist(), store.items().to_pylist()
    found = {}
    for part in store.manifest.splits:
        rows = store.load(part)
        ids, dense, labels = np.array(rows.ids), np.array(rows.dense, dtype=np.float64), np.array(rows.labels)
        decoded = {
            n: store.vocabulary(n).decode(ids[:, place]) for place, n in enumerate(["user", "item", "brand", "hour"])
        }
        for place, row in enumerate(np.array(rows.row).tolist()):
            found[row] = {
                "part": part,
                "label": float(labels[place, 0]),
                "user": users[rows.user[place]],
                "item": items[rows.item[place]],
                "time": int(rows.time[place]),
                "known": (decoded["user"][place], decoded["item"][place]),
                "brand": decoded["brand"][place],
                "hour": decoded["hour"][place],
                "dense": dense[place],
            }
    return found


def test_every_row_of_the_store_is_that_row_of_the_log(path, table, tmp_path):
    store = run(path, tmp_path / "store")
    rows, found = table.to_pylist(), by_row(store)
    assert sorted(found) == [row for row, entry in enumerate(rows) if entry["kind"] == "view"]
    training = [row for row, entry in found.items() if entry["part"] == "train"]
    schema = store.schema
    price, dwell = schema.feature("price"), schema.feature("dwell")
    log_price = np.log([rows[row]["price"] + 1 for row in training])
    assert price.transform.constants == pytest.approx({"mean": log_price.mean(), "std": log_price.std()})
    mean = np.mean([rows[row]["dwell"] for row in training if rows[row]["dwell"] is not None])
    assert dwell.missing_value == pytest.approx(mean)
    seen = {
        name: {rows[row][column] for row in training}
        for name, column in (("user", "u"), ("item", "i"), ("brand", "brand"))
    }
    for row, entry in found.items():
        raw = rows[row]
        assert (entry["user"], entry["item"], entry["time"]) == (raw["u"], raw["i"], raw["t"] * 1_000_000)
        assert entry["known"] == (
            raw["u"] if raw["u"] in seen["user"] else None,
            raw["i"] if raw["i"] in seen["item"] else None,
        )
        assert entry["brand"] == (raw["brand"] if raw["brand"] in seen["brand"] else None)
        assert entry["hour"] == raw["t"] // 3600 % 24
        pair = [other for other in rows if (other["u"], other["i"]) == (raw["u"], raw["i"])]
        followed = any(
            other["kind"] == "click"
            and 0 <= other["t"] - raw["t"] <= 3 * 3600
            and not any(view["kind"] == "view" and raw["t"] < view["t"] <= other["t"] for view in pair)
            for other in pair
        )
        assert entry["label"] == followed
        expected = (np.log(raw["price"] + 1) - log_price.mean()) / log_price.std()
        assert entry["dense"][0] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    order = {"train": 0, "validation": 1, "test": 2}
    times = [[e["time"] for e in found.values() if order[e["part"]] == place] for place in range(3)]
    assert max(times[0]) < min(times[1])
    assert max(times[1]) < min(times[2])
    assert len(times[2]) == pytest.approx(0.2 * len(found), abs=5)


def test_several_tasks_are_labels_side_by_side(path, table, tmp_path):
    store = run(path, tmp_path / "store", columns=WIDE, label=TasksLabel(tasks=("click", "order")))
    assert [feature.name for feature in store.schema.labels] == ["click", "order"]
    raw = {name: table[column].to_numpy(zero_copy_only=False) for name, column in WIDE.event.flags.items()}
    for part in store.manifest.splits:
        rows = store.load(part)
        assert np.array_equal(rows.labels, np.stack([raw["click"][rows.row], raw["order"][rows.row]], axis=1))
    means = store.manifest.source["parts"]["test"]["label_means"]
    assert means["order"] == pytest.approx(store.load("test").labels[:, 1].mean())
    again = run(path, tmp_path / "store", columns=WIDE, label=TasksLabel(tasks=("click", "order")))
    assert again.versions() == (1,)


def test_tasks_of_a_long_log_are_what_each_label_alone_is(path, tmp_path):
    tasks = TasksLabel(tasks=("click", "order"), within="3h", credit="all")
    store = run(path, tmp_path / "both", label=tasks)
    for place, event in enumerate(tasks.tasks):
        alone = by_row(run(path, tmp_path / event, label=EventLabel(event=event, within="3h", credit="all")))
        for part in store.manifest.splits:
            rows = store.load(part)
            assert [alone[row]["label"] for row in rows.row.tolist()] == rows.labels[:, place].tolist()


def test_a_task_of_one_class_is_named(path, tmp_path, table):
    nothing = table.set_column(table.column_names.index("bought"), "bought", pa.array(np.zeros(len(table), dtype=bool)))
    parquet.write_table(nothing, path)
    with pytest.raises(DataError, match=r"label `order` is 0 in all [\d,]+ training rows: there is nothing to learn"):
        run(path, tmp_path / "store", columns=WIDE, label=TasksLabel(tasks=("click", "order")))


def test_settings_of_tasks_that_cannot_be():
    for tasks in ((), ("click", "click")):
        with pytest.raises(ConfigurationError, match=r"`label\.tasks` must name each kind once"):
            TasksLabel(tasks=tasks)
    with pytest.raises(ConfigurationError, match="'clic' is not a kind of event"):
        TasksLabel(tasks=("clic",))


@pytest.mark.parametrize(("columns", "kind"), [(LONG, "click"), (WIDE, "order")])
def test_what_was_taken_is_all_there_is(path, table, tmp_path, columns, kind):
    store = run(path, tmp_path / "store", columns=columns, label=TakenLabel(taken=kind))
    found = by_row(store)
    flags = table["bought"].to_pylist()
    wanted = [
        row for row, e in enumerate(table.to_pylist()) if (e["kind"] == "click" if columns is LONG else flags[row])
    ]
    assert sorted(found) == wanted
    assert {entry["label"] for entry in found.values()} == {1.0}


def test_the_items_before_each_row_against_a_loop(path, table, tmp_path):
    history = FeatureSpec(
        name="before", kind="sequence", role="user", length=4, history={"of": "click", "by": ["user"]}
    )
    store = run(path, tmp_path / "store", features=[*FEATURES[:2], history, *FEATURES[2:]])
    assert store.schema.feature("before").width == 4
    assert [feature.name for feature in store.schema.features][:4] == ["user", "item", "before", "brand"]
    raw, words = table.to_pylist(), store.vocabulary("before")
    assert words == store.vocabulary("item")
    for part in store.manifest.splits:
        rows = store.load(part)
        for place in range(0, len(rows), 7):
            row = raw[rows.row[place]]
            clicks = [e for e in raw if e["kind"] == "click" and e["u"] == row["u"] and e["t"] < row["t"]]
            codes = words.encode([e["i"] for e in sorted(clicks, key=lambda e: e["t"])])
            codes = codes[codes > 0][-4:].tolist()
            assert rows.history[place].tolist() == [0] * (4 - len(codes)) + codes


def test_lists_written_as_text_against_a_loop(path, table, tmp_path):
    draw = np.random.default_rng()
    lists = [[f"g{g}" if g else "" for g in draw.integers(0, 9, draw.integers(0, 5))] for _ in range(len(table))]
    texts = [None if draw.random() < 0.1 else "|".join(entries) for entries in lists]
    parquet.write_table(table.append_column("genres", pa.array(texts, type=pa.string())), path)
    genres = FeatureSpec(name="genres", kind="multi_categorical", role="item", separator="|", length=3)
    store = run(path, tmp_path / "store", features=[*FEATURES[:2], genres])
    words = store.vocabulary("genres")
    training = store.load("train").row.tolist()
    assert set(words.entries) == {w for row in training for w in (texts[row] or "").split("|") if w}
    for part in store.manifest.splits:
        rows = store.load(part)
        for place, row in enumerate(rows.row.tolist()):
            codes = words.encode([w for w in (texts[row] or "").split("|") if w][:3]).tolist()
            assert rows.group("multi")[place].tolist() == codes + [0] * (3 - len(codes))
    with pytest.raises(ConfigurationError, match="kind `multi_categorical` needs a `separator`"):
        replace(genres, separator=None)
    with pytest.raises(ConfigurationError, match="`separator` is for kind `multi_categorical`"):
        FeatureSpec(name="brand", kind="categorical", separator="|")


def test_sequences_that_cannot_be(path, tmp_path):
    of_user = {"of": "click", "by": ["user"]}
    one = FeatureSpec(name="one", kind="sequence", role="user", history=of_user)
    for features, problem in (
        ([*FEATURES[:2], one, replace(one, name="two")], "`one` and `two` are all sequences"),
        ([FEATURES[0], one], "feature `one` is a sequence of items, and 0 features are the item's `id`"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            run(path, tmp_path / "store", features=features)
    with pytest.raises(DataError, match="feature `one`: the log has no events of kind `impression`"):
        run(path, tmp_path / "store", features=[*FEATURES[:2], replace(one, history={**of_user, "of": "impression"})])
    with pytest.raises(ConfigurationError, match="kind `sequence` needs `history`, role `user`"):
        FeatureSpec(name="one", kind="sequence", role="item", history=of_user)
    with pytest.raises(ConfigurationError, match="a sequence is of a kind of event, by the user alone"):
        FeatureSpec(name="one", kind="sequence", role="user", history={"of": "click", "by": ["item"]})
    with pytest.raises(ConfigurationError, match="`length` is for kinds `sequence` and `multi_categorical`"):
        replace(one, length=0)


def test_the_last_events_of_each_user_are_left_out(path, table, tmp_path):
    store = run(path, tmp_path / "store", label=TakenLabel(taken="click"), split=LeaveLastOut(leave_out=1))
    clicks = [(e["u"], e["t"], row) for row, e in enumerate(table.to_pylist()) if e["kind"] == "click"]
    users = {user: sorted(c for c in clicks if c[0] == user) for user, _, _ in clicks}
    last = {events[-1][2] for events in users.values() if len(events) > 2}
    assert set(store.load("test").row.tolist()) == last
    assert set(store.load("validation").row.tolist()) == {e[-2][2] for e in users.values() if len(e) > 2}
    with pytest.raises(ConfigurationError, match=r"`split\.leave_out` cuts between them"):
        run(path, tmp_path / "store", label=PreferenceLabel(preference=WEIGHTS), split=LeaveLastOut(leave_out=1))


def test_wide_click_label(path, table, tmp_path):
    store = run(path, tmp_path / "store", columns=WIDE, label=EventLabel(event="click"))
    found = by_row(store)
    assert [found[row]["label"] for row in range(table.num_rows)] == table["clicked"].to_pylist()
    assert store.schema.labels[0].name == "click"


@pytest.mark.parametrize("mapped", [True, False])
def test_threshold_label(path, table, tmp_path, mapped):
    columns = Columns(
        user="u", item="i", time="t", event=ConstantEvent(constant="view"), value="rating" if mapped else None
    )
    store = run(path, tmp_path / "store", columns=columns, label=ValueLabel(value="rating", at_least=4))
    expected = {row: rating >= 4 for row, rating in enumerate(table["rating"].to_pylist()) if rating is not None}
    assert {row: entry["label"] for row, entry in by_row(store).items()} == expected


@pytest.mark.parametrize("form", ["long", "wide"])
def test_preference_never_looks_into_a_later_part(path, table, tmp_path, form):
    label, split = PreferenceLabel(preference=WEIGHTS), TimeSplit(validation=0.2, test=0.3)
    store = run(path, tmp_path / "store", columns=LONG if form == "long" else WIDE, label=label, split=split)
    rows = table.to_pylist()
    parts = split.parts([row["t"] for row in rows])
    pairs = {}
    for place, (row, part) in enumerate(zip(rows, parts.tolist(), strict=True)):
        kinds = (
            [row["kind"].replace("purchase", "order")]
            if form == "long"
            else [k for k, c in (("click", "clicked"), ("order", "bought")) if row[c]]
        )
        pairs.setdefault((row["u"], row["i"], part), []).append(
            (row["t"], place, max((WEIGHTS.get(k, 0) for k in kinds), default=0))
        )
    expected = {
        min(events)[1]: (part, max(weight for *_, weight in events) / 2) for (_, _, part), events in pairs.items()
    }
    found = by_row(store)
    assert sorted(found) == sorted(expected)
    for row, (part, score) in expected.items():
        assert found[row]["part"] == part
        assert found[row]["label"] == pytest.approx(score)


def test_csv_and_parquet_give_the_same_store(path, table, tmp_path):
    lines = [",".join(table.column_names)]
    lines += [",".join("" if value is None else str(value) for value in row.values()) for row in table.to_pylist()]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    columns = Columns(user="u", item="i", time="t", event="kind", item_type="int64")
    one, other = (
        run(path.with_name(name), tmp_path / name[:-4], columns=columns) for name in ("log.csv", "log.parquet")
    )
    assert one.schema == other.schema
    for part in ("train", "validation", "test"):
        a, b = one.load(part), other.load(part)
        for name in ("ids", "dense", "labels", "time", "row", "user", "item"):
            np.testing.assert_array_equal(np.array(getattr(a, name)), np.array(getattr(b, name)))


def test_the_same_log_and_settings_are_prepared_once(path, table, tmp_path):
    told = []
    store = run(path, tmp_path / "store", progress=told.append)
    assert any(re.match(r"feature `price`: log1p_zscore, stored as float16", line) for line in told)
    assert any(line.startswith("train: ") and "mean of label `click`" in line for line in told)
    assert told[-1].startswith("wrote version 1 of")
    again = []
    assert run(path, store, progress=again.append).versions() == (1,)
    assert again == [f"`{tmp_path / 'store'}` was made from this log with these settings: nothing to do"]
    path.rename(tmp_path / "moved.parquet")
    assert run(tmp_path / "moved.parquet", tmp_path / "store").versions() == (1,)  # the bytes count, not the name
    assert run(tmp_path / "moved.parquet", tmp_path / "store", shuffle_seed=1).versions() == (1, 2)
    parquet.write_table(table.slice(1), tmp_path / "moved.parquet")
    assert run(tmp_path / "moved.parquet", tmp_path / "store", shuffle_seed=1).versions() == (1, 2, 3)


def test_a_limit_of_memory_reaches_duckdb_and_changes_nothing(path, tmp_path):
    history = {"of": "click", "by": ["user"], "window": "1d"}
    features = [*FEATURES, FeatureSpec(name="clicks", kind="numeric", transform="none", history=history)]
    whole = run(path, tmp_path / "whole", features=features)
    bounded = run(path, tmp_path / "bounded", features=features, memory_limit="64MiB")
    for part in ("train", "test"):
        one, other = whole.load(part), bounded.load(part)
        assert one.dense.tobytes() == other.dense.tobytes()
        assert one.row.tolist() == other.row.tolist()
    lines = []
    again = run(path, tmp_path / "whole", features=features, memory_limit="1GB", progress=lines.append)
    assert (again.versions(), "nothing to do" in lines[0]) == ((1,), True)
    for wrong in ("400", "1 MB", "much"):
        with pytest.raises(ConfigurationError, match="`memory_limit`"):
            run(path, tmp_path / "none", memory_limit=wrong)


def test_the_manifest_tells_what_was_done(path, tmp_path):
    store = run(path, tmp_path / "store")
    source = json.loads(json.dumps(store.manifest.source))
    assert (source["rows"], source["rejected"]) == (2000, 0)
    assert set(source["counts"]) == {"view", "click", "cart", "order"}
    assert sum(part["rows"] for part in source["parts"].values()) == source["counts"]["view"]
    assert source["settings"]["label"] == {"event": "click", "per": None, "within": "3h", "credit": "last"}
    assert "stored as float16" in source["notes"]["dwell"]


def test_an_error_leaves_the_store_as_it_was(path, tmp_path):
    store = run(path, tmp_path / "store")
    before = {file: file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file()}
    with pytest.raises(DataError):
        run(path, store, event_map={})
    with pytest.raises(DataError):
        run(path, store, split=TimeSplit(at="2030-01-01"))
    assert {file: file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file()} == before
    store.verify()


def test_a_file_in_the_way_of_the_store(path, tmp_path):
    (tmp_path / "store").write_text("mine")
    with pytest.raises(ArtifactError):
        run(path, tmp_path / "store")
    assert (tmp_path / "store").read_text() == "mine"


def test_overflow_from_later_rows(tmp_path):
    generator = np.random.default_rng(0)
    rows = 1000
    late = np.arange(rows) >= 900
    table = log(rows, seed=0).set_column(2, "t", pa.array(1_700_000_000 + np.arange(rows)))
    price = np.where(late, 1e9, generator.uniform(1, 2, rows))
    table = table.set_column(table.column_names.index("price"), "price", pa.array(price))
    parquet.write_table(table, tmp_path / "log.parquet")
    features = [FEATURES[0], FeatureSpec(name="price", kind="numeric", transform="none")]
    options = {"features": features, "columns": WIDE, "label": EventLabel(event="click")}
    with pytest.raises(DataError, match="feature `price` has 1e\\+09"):
        run(tmp_path / "log.parquet", tmp_path / "store", **options)
    assert not FeatureStore(tmp_path / "store").exists
    wide = run(tmp_path / "log.parquet", tmp_path / "store", on_overflow="float32", **options)
    assert wide.load("test").dense.dtype == np.float32
    clipped = run(tmp_path / "log.parquet", tmp_path / "store", on_overflow="clip", **options)
    assert clipped.load("test").dense.dtype == np.float16
    assert clipped.load("test").dense.max() == 65504


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"columns": WIDE, "label": EventLabel(event="cart")}, ConfigurationError, "no flag column is mapped to `cart`"),
        ({"label": EventLabel(event="impression", per="view")}, DataError, "the log has no events of kind `impression`"),
        (
            {"columns": Columns(user="u", item="i", time="t", event=ConstantEvent(constant="view"), value="rating"),
             "label": ValueLabel(value="rating", at_least=6)},
            DataError,
            "training rows: there is nothing to learn; it goes from 1 to 5",
        ),
        ({"label": EventLabel(event="click", within="0s")}, DataError, "training rows: there is nothing to learn; the log has"),
        ({"label": PreferenceLabel(preference={"impression": 1.0})}, DataError, "`preference` is 0 in all"),
        ({"features": []}, ConfigurationError, "`features` names no feature"),
        ({"columns": WIDE, "label": EventLabel(event="click"), "features": [FeatureSpec(name="bought", kind="numeric")]},
         LeakageError, "feature `bought` reads `bought` (columns.event.flags.order), which is known only after its row"),
        ({"features": [FeatureSpec(name="k", column="kind", kind="categorical")]}, LeakageError, "columns.event"),
        (
            {"label": ValueLabel(value="rating", at_least=4), "features": [FeatureSpec(name="r", column="rating", kind="numeric")]},
            LeakageError,
            "feature `r` reads `rating` (label.value)",
        ),
        ({"features": [FeatureSpec(name="t", kind="numeric")]}, ConfigurationError, "reads the time column `t`"),
        ({"features": [FeatureSpec(name="u", kind="numeric")]}, ConfigurationError, "reads the key column `u` as a number"),
        (
            {"features": [FeatureSpec(name="a", column="i2", kind="numeric"), FeatureSpec(name="b", column="i2", kind="categorical")]},
            ConfigurationError,
            "two features read `i2`, as double and as auto",
        ),
        ({"features": [FeatureSpec(name="colour", kind="categorical")]}, DataError, "has no column `colour` (a feature or label)"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, changes, error, text):
    table = log(seed=3)
    # No pair meets a click at its own time, so that a window of 0 s holds none.
    table = table.set_column(2, "t", pa.array(1_700_000_000 + np.arange(table.num_rows)))
    parquet.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(error) as caught:
        run(tmp_path / "log.parquet", tmp_path / "store", **changes)
    assert text in caught.value.problem
    assert not FeatureStore(tmp_path / "store").exists


def test_ratings(shared, tmp_path):
    columns = Columns(
        user="userId", item="movieId", time="timestamp", event=ConstantEvent(constant="view"), value="rating"
    )
    store = prepare(
        shared / "data" / "movielens_small" / "ratings.csv",
        tmp_path / "store",
        columns=columns,
        label=ValueLabel(value="rating", at_least=4),
        features=[FEATURES[0], FEATURES[1]],
    )
    train, test = store.load("train"), store.load("test")
    assert len(test) == pytest.approx(0.2 * 100_004, abs=20)
    assert len(train) + len(store.load("validation")) + len(test) == 100_004
    assert (np.array(test.ids)[:, 0] == 0).mean() > 0.8  # most test rows come from users unseen in training
