"""No verdict inside users where a feature knows how the user's own earlier rows ended."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.data.columns import Columns, ConstantEvent, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel, PreferenceLabel, TakenLabel, TasksLabel, ValueLabel
from lightning_mp.data.negatives import Negatives
from lightning_mp.data.prepare import prepare
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.running.evaluate import MODEL, RUNNING, TREES, evaluate
from lightning_mp.running.own_outcomes import own_outcomes

DAY = 86_400_000_000
IDS = [FeatureSpec(name="user", kind="id", role="user"), FeatureSpec(name="item", kind="id", role="item")]
COLUMNS = Columns(
    user="user", item="item", time="time", event=EventFlags(flags={"order": "bought", "click": "clicked"})
)


def history(name, **settings):
    return FeatureSpec(name=name, kind="numeric", transform="none", history=settings)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Labels that depend on nothing at all."""
    rng, rows = np.random.default_rng(), 9000
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    bought = rng.random(rows) < 0.15
    pq.write_table(
        pa.table({
            "user": rng.integers(500, size=rows), "item": rng.integers(30, size=rows),
            "time": 1_700_000_000_000_000 + np.sort(rng.choice(30 * DAY, rows, replace=False)),
            "bought": bought, "clicked": bought | (rng.random(rows) < 0.2), "stars": rng.integers(1, 6, size=rows),
            "minutes": rng.random(rows), "shown": rng.choice(["view", "impression"], size=rows),
        }),
        path,
    )  # fmt: skip
    return path


def prepared(log, folder, *specs, label=None, columns=COLUMNS, **settings):
    label = label or EventLabel(event="order")
    return prepare(log, folder / "store", columns=columns, label=label, features=[*IDS, *specs], **settings)


def test_a_count_of_own_orders_gets_no_verdict_inside_users(log, tmp_path):
    store = prepared(log, tmp_path, history("own_7d", of="order", by=["user"], window="7d"))
    test = store.load("test")
    count, label = test.dense[:, 0].astype(np.float64), test.labels[:, 0]
    pairs = [
        np.sign(count[(test.user == u) & (label == 0)][None, :] - count[(test.user == u) & (label > 0)][:, None])
        for u in np.unique(test.user)
    ]
    won = np.concatenate([pair.ravel() for pair in pairs]) / 2 + 0.5
    assert won.mean() > 0.6  # rows without a purchase stand after one, though nothing is there to be learned
    table = evaluate(store, row=test.row, score=1 / (2 + count))
    assert table.row(MODEL).user_auc is None
    assert table.row(RUNNING).user_auc is None
    assert all(row.user_auc is None for row in table.rows if row.name == TREES)
    assert table.row("item mean").user_auc is not None
    told = [note for note in table.notes if note.startswith("inside users")]
    assert len(told) == 1
    assert told[0].startswith("inside users no verdict: `own_7d` follows the user's own earlier outcomes")


def test_one_of_items_and_one_that_comes_too_late_to_know_get_theirs(log, tmp_path):
    late = history("late", of="order", by=["user"], delay="10d")
    store = prepared(log, tmp_path, history("of_item", of="order", by=["item"]), late, split=TimeSplit(test=0.2))
    test = store.load("test")
    table = evaluate(store, row=test.row, score=np.random.default_rng().random(len(test)))
    assert table.row(MODEL).user_auc == pytest.approx(0.5, abs=0.15)
    assert table.row(RUNNING).user_auc is None
    assert len([note for note in table.notes if note.startswith("inside users ") and "AUC" in note]) == 1
    assert not any("no verdict" in note for note in table.notes)
    source = store.manifest.source
    assert own_outcomes(source, span_us=10 * DAY - 1) == ()
    assert own_outcomes(source, span_us=10 * DAY) == ("late",)


WIDE = {
    "orders": {"of": "order", "by": ["user"]},
    "of_pair": {"of": "order", "by": ["item", "user"], "as": "recency"},
    "clicks": {"of": "click", "by": ["user"]},
    "rate": {"of": "impression", "per": "click", "by": ["user"], "as": "rate"},
    "rows": {"of": "impression", "by": ["user"]},
    "of_item": {"of": "click", "by": ["item"]},
    "in_session": {"of": "order", "by": ["session"]},
    "stayed": {"of": "impression", "by": ["user"], "as": "mean", "column": "dwell", "delay": "1d"},
}


def test_which_features_follow(log, tmp_path):
    specs = [history(name, **settings) for name, settings in WIDE.items()]
    before = FeatureSpec(name="before", kind="sequence", role="user", history={"of": "order", "by": ["user"]}, length=3)
    for label in (EventLabel(event="order"), TasksLabel(tasks=("click", "order"))):
        store = prepared(log, tmp_path, *specs, before, label=label, sessions="1d")
        expected = ("orders", "of_pair", "clicks", "rate", "in_session", "stayed", "before")
        assert own_outcomes(store.manifest.source, span_us=DAY) == expected


def test_of_a_value_it_is_that_column_and_the_label(log, tmp_path):
    stars = {"of": "view", "as": "mean"}
    specs = [
        history("of_label", of="label", by=["user"], **{"as": "mean"}),
        history("own_stars", by=["user"], column="stars", **stars),
        history("item_stars", by=["item"], column="stars", **stars),
        history("own_minutes", by=["user"], column="minutes", **stars),
        history("own_count", of="view", by=["user"]),
    ]
    for value in (None, "stars"):
        columns = Columns(user="user", item="item", time="time", event=ConstantEvent(constant="view"), value=value)
        store = prepared(log, tmp_path, *specs, label=ValueLabel(value="stars", at_least=4), columns=columns)
        assert own_outcomes(store.manifest.source, span_us=DAY) == ("of_label", "own_stars")


def settings_of(label, features, **more):
    past = [{"name": name, "history": settings} for name, settings in features.items()]
    return {"settings": {"label": asdict(label), "features": past, "columns": {"user": "who", "event": "what"}, **more}}


def test_a_long_log_counts_the_kind_of_its_rows_as_no_outcome():
    features = {
        "views": {"of": "view", "by": ["who"]},
        "shown": {"of": "impression", "by": ["user", "brand"]},
        "clicks": {"of": "click", "by": ["user"]},
    }
    found = {
        counts: own_outcomes(
            {**settings_of(EventLabel(event="click"), features), "counts": {counts: 9, "click": 2}}, span_us=0
        )
        for counts in ("impression", "view")
    }
    assert found == {"impression": ("views", "clicks"), "view": ("shown", "clicks")}
    of_views = settings_of(EventLabel(event="order", per="view"), features)
    assert own_outcomes({**of_views, "counts": {"impression": 9}}, span_us=0) == ("shown", "clicks")
    preferred = settings_of(PreferenceLabel(preference={"click": 1.0, "view": 0.0}), features)
    assert own_outcomes(preferred, span_us=0) == ("clicks",)


def test_drawn_negatives_share_the_value_of_their_positive_and_other_stores_say_nothing():
    features = {"orders": {"of": "order", "by": ["user"]}}
    assert own_outcomes(settings_of(EventLabel(event="order"), features), span_us=0) == ("orders",)
    drawn = settings_of(EventLabel(event="order"), features, negatives=asdict(Negatives()))
    assert own_outcomes(drawn, span_us=0) == ()
    assert own_outcomes(settings_of(TakenLabel(taken="order"), features), span_us=0) == ()
    assert own_outcomes({}, span_us=0) == own_outcomes({"digest": "a"}, span_us=0) == ()
