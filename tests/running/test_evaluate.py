from __future__ import annotations

import io
import json
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
import rich
from rich.console import Console

from lightning_mp.baselines.item_mean import item_mean
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel, PreferenceLabel
from lightning_mp.data.prepare import prepare
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.synthetic.true_probabilities import true_probabilities
from lightning_mp.data.synthetic.write import write_log
from lightning_mp.errors import ArtifactError, DataError
from lightning_mp.running.evaluate import BEST, MODEL, RUNNING, evaluate
from lightning_mp.running.metrics_table import MetricsRow, MetricsTable, SliceRow
from lightning_mp.running.rivals import doubt, loss_note

FLAGS = {"click": "click", "cart": "cart", "order": "order"}
TREES = ["boosted trees"] if find_spec("lightgbm") else []
BASELINES = ["popularity", "item mean", "user + item mean", "running user + item mean", *TREES]


def stored(folder, label, **settings):
    log = write_log(
        folder / "log.parquet", SyntheticLog(**{"impressions": 30_000, "users": 300, "items": 60, **settings})
    )
    columns = Columns(user="user_id", item="item_id", time="event_time", event=EventFlags(flags=FLAGS))
    features = [
        FeatureSpec(name="user_id", kind="id", role="user"),
        FeatureSpec(name="item_id", kind="id", role="item"),
    ]
    return log, prepare(log, folder / "store", columns=columns, label=label, features=features)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("clicks"), EventLabel(event="click"))


def area(scores, target):
    """Every pair looked at."""
    positive, negative = scores[target > 0], scores[target == 0]
    return np.mean([(p > negative).mean() + 0.5 * (p == negative).mean() for p in positive])


def test_model_baselines_and_best_possible_stand_on_the_same_rows(clicks):
    log, store = clicks
    test = store.load("test")
    rng = np.random.default_rng()
    score = np.clip(true_probabilities(log, test.row) + rng.normal(0, 0.05, len(test)), 1e-6, 1 - 1e-6)
    shuffled = rng.permutation(len(test))
    table = evaluate(store, row=test.row[shuffled], score=score[shuffled].astype(np.float32), log=log)
    target = test.labels[:, 0]
    assert [row.name for row in table.rows] == [MODEL, *BASELINES, BEST]
    assert {row.rows for row in table.rows} == {len(test)}
    mine = table.row(MODEL)
    assert mine.auc == pytest.approx(area(score.astype(np.float32), target), abs=1e-6)
    assert mine.log_loss == pytest.approx(-np.mean(target * np.log(score) + (1 - target) * np.log1p(-score)), rel=1e-5)
    best = table.row(BEST)
    assert best.auc == pytest.approx(area(true_probabilities(log, test.row), target), abs=1e-6)
    assert max(row.auc for row in table.rows) == best.auc
    assert min(row.log_loss for row in table.rows if row.log_loss is not None) == best.log_loss
    before = [store.load(name) for name in ("train", "validation")]
    static = item_mean(
        np.concatenate([p.item for p in before]), np.concatenate([p.labels[:, 0] for p in before]), test.item
    )
    assert table.row("item mean").auc == pytest.approx(area(static, target), abs=1e-6)
    without = {row.name for row in table.rows if row.log_loss is None}
    assert without == {"popularity", "user + item mean", "running user + item mean"}


def inside_users(scores, target, user):
    """AUC of each user with both classes, and its rows."""
    users = [u for u in np.unique(user) if 0 < target[user == u].mean() < 1]
    return {u: (area(scores[user == u], target[user == u]), (user == u).sum()) for u in users}


def test_the_order_inside_each_user_and_on_slices_stands_beside(clicks):
    log, store = clicks
    test, train = store.load("test"), store.load("train")
    score = np.random.default_rng().random(len(test))
    table = evaluate(store, row=test.row, score=score, log=log)
    target = test.labels[:, 0]
    values = np.array(list(inside_users(score, target, test.user).values()))
    assert table.row(MODEL).user_auc == pytest.approx(np.average(values[:, 0], weights=values[:, 1]), abs=1e-6)
    rivals = [row for row in table.rows if row.name in BASELINES]
    assert table.rival == max(rivals, key=lambda row: row.auc).name
    slices = {part.name: part for part in table.slices}
    new = ~np.isin(test.user, train.user)
    assert slices["new users"].rows == new.sum()
    assert slices["new users"].positives == target[new].sum()
    assert slices["new users"].auc == pytest.approx(area(score[new], target[new]), abs=1e-6)
    assert slices["new users"].rows + slices["known users"].rows == len(test)
    of_items = [part.rows for name, part in slices.items() if name.endswith("items")]
    assert sum(of_items) == len(test)
    told = [note for note in table.notes if note.startswith("inside users ")]
    assert len(told) == 1
    assert [row.name for row in rivals if row.user_auc is None] == [RUNNING]
    strongest = max((row for row in rivals if row.name != RUNNING), key=lambda row: row.user_auc).name
    assert f"`{strongest}`" in told[0]


def test_a_worse_log_loss_is_told_though_the_order_is_the_best(clicks):
    log, store = clicks
    test = store.load("test")
    true, target = true_probabilities(log, test.row), test.labels[:, 0].astype(np.float64)
    table = evaluate(store, row=test.row, score=true**0.4, log=log)
    assert not any("does not beat" in note for note in table.notes)
    told = [note for note in table.notes if note.startswith("the model's log loss is no better than that of ")]
    assert len(told) == len(BASELINES) - 3  # those that give probabilities
    mean = table.row("item mean").log_loss
    mine = -np.mean(target * np.log(true**0.4) + (1 - target) * np.log1p(-(true**0.4)))
    begin = f"the model's log loss is no better than that of `item mean`: {mine:.4f} against {mean:.4f}, "
    assert told[0].startswith(begin + f"{mine - mean:+.4f}"[:6])
    assert told[0].endswith(f"over {len(np.unique(test.user)):,} users")
    assert not any("log loss is no better" in n for n in evaluate(store, row=test.row, score=true, log=log).notes)


def test_an_equal_log_loss_may_be_chance():
    rng = np.random.default_rng()
    user, target = rng.integers(40, size=900), (rng.random(900) < 0.3).astype(np.float64)
    score = rng.uniform(0.1, 0.9, 900)
    said = loss_note(score, score, "itself", target, user)
    assert said.endswith("+0.0000, 95 % between +0.0000 and +0.0000 over 40 users, which may be chance")
    alone = loss_note(score, score, "itself", target, None)
    assert alone == said.partition(", +0.0000")[0]


def test_a_slice_with_few_positives_shows_their_number_and_no_auc():
    rows = (MetricsRow(name=MODEL, auc=0.75, log_loss=0.5, rows=900),)
    few, enough = ({"auc": 0.0576, "rival_auc": 0.61, "rows": 40, "positives": count} for count in (9, 10))
    slices = (SliceRow(name="new users", **few), SliceRow(name="known users", **enough))
    printed = io.StringIO()
    table = MetricsTable(rows=rows, notes=(), unseen={}, slices=slices, rival="popularity")
    Console(file=printed, width=100).print(table)
    lines = [line for line in printed.getvalue().splitlines() if " users " in line and "AUC" not in line]
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert cells == [["new users", "-", "-", "9", "40"], ["known users", "0.0576", "0.6100", "10", "40"]]
    assert table.to_dict()["slices"][0]["auc"] == 0.0576


def test_a_model_that_wins_inside_users_is_told_so_and_an_equal_one_is_not(clicks):
    log, store = clicks
    test = store.load("test")
    best = evaluate(store, row=test.row, score=true_probabilities(log, test.row), log=log)
    assert [n for n in best.notes if n.startswith("inside users ")] != []
    true, target, user = true_probabilities(log, test.row), test.labels[:, 0].astype(float), test.user
    rng = np.random.default_rng()
    noise = rng.normal(size=len(test))
    assert doubt(true, noise, "noise", target, user).startswith("inside users the model beats `noise`: AUC +0.")
    assert doubt(noise, true, "true", target, user).startswith("inside users `true` beats the model: AUC -0.")
    same = doubt(true, true, "itself", target, user)
    assert same.startswith("inside users the model and `itself` cannot be told apart: AUC +0.0000, 95 % between ")
    assert same.endswith(f"over {len(inside_users(true, target, user)):,} users")
    assert doubt(true, true, "itself", np.zeros(len(test)), user) is None


def test_without_lightgbm_it_is_said_how_to_get_the_trees(clicks, monkeypatch):
    _, store = clicks
    test = store.load("test")
    monkeypatch.setattr("lightning_mp.running.evaluate.find_spec", lambda name: None)
    table = evaluate(store, row=test.row, score=np.full(len(test), 0.5))
    assert [row.name for row in table.rows] == [MODEL, *BASELINES[:4]]
    assert "`boosted trees` are left out: run `pip install 'lightning-mp[search]'` to see them here" in table.notes
    printed = io.StringIO()
    Console(file=printed, width=200).print(table)
    assert "pip install 'lightning-mp[search]'" in printed.getvalue()


def test_a_part_of_the_test_rows_and_padded_ones_count_once(clicks):
    log, store = clicks
    rows = store.load("test").row[:500]
    score = np.random.default_rng().random(500)
    once = evaluate(store, row=rows, score=score, log=log)
    padded = evaluate(store, row=[*rows, *rows[:7]], score=[*score, *np.zeros(7)], log=log)
    assert once == padded
    assert {row.rows for row in once.rows} == {500}


def test_a_model_that_beats_no_baseline_is_told_so(clicks):
    log, store = clicks
    test = store.load("test")
    table = evaluate(store, row=test.row, score=1 - true_probabilities(log, test.row), log=log)
    told = [note for note in table.notes if "does not beat" in note]
    assert len(told) == len(BASELINES)
    assert told[1].startswith(f"the model does not beat `item mean`: AUC {table.row(MODEL).auc:.4f} against ")
    assert any("AUC below the best possible" in note for note in table.notes)


def test_a_model_that_knows_the_future_is_told_so(clicks):
    log, store = clicks
    test = store.load("test")
    table = evaluate(store, row=test.row, score=0.1 + 0.8 * test.labels[:, 0], log=log)
    assert table.row(MODEL).auc == 1
    assert any("a feature knows the future" in note for note in table.notes)
    assert not any("does not beat" in note for note in table.notes)


def test_nan_scores_are_undefined_not_a_number(clicks):
    log, store = clicks
    test = store.load("test")
    score = np.full(len(test), 0.5)
    score[3] = np.nan
    table = evaluate(store, row=test.row, score=score, log=log)
    assert table.row(MODEL).auc is None
    assert table.row(MODEL).log_loss is None
    assert f"`model` has an undefined metric: 1 of {len(test):,} scores are NaN" in table.notes


def test_a_certain_score_that_is_wrong_costs_infinity_and_that_is_said(clicks):
    log, store = clicks
    test = store.load("test")
    table = evaluate(store, row=test.row, score=np.zeros(len(test)), log=log)
    assert table.row(MODEL).auc == 0.5
    assert table.row(MODEL).log_loss is None
    told = "`model` has an undefined metric: its log loss is infinite, since a score of 0 or 1 was wrong"
    assert told in table.notes
    table.to_dict()


def test_users_and_items_unseen_in_training_are_counted(clicks):
    log, store = clicks
    train, test = store.load("train"), store.load("test")
    table = evaluate(store, row=test.row, score=np.full(len(test), 0.5), log=log)
    new = ~np.isin(test.user, train.user)
    assert table.unseen["users"] == len(set(test.user[new])) > 0
    assert table.unseen["user_rows"] == new.sum()
    assert any(note.startswith(f"unseen in training: {table.unseen['users']} users") for note in table.notes)


def test_the_best_possible_is_left_out_where_the_label_is_no_click(tmp_path):
    log, store = stored(tmp_path, PreferenceLabel(preference={"order": 1.0, "cart": 0.5, "click": 0.1}))
    test = store.load("test")
    table = evaluate(store, row=test.row, score=np.linspace(0.1, 0.9, len(test)), log=log)
    assert [row.name for row in table.rows] == [MODEL, *BASELINES]
    assert table.row(MODEL).auc == pytest.approx(area(np.linspace(0.1, 0.9, len(test)), test.labels[:, 0]), abs=1e-6)


def test_rows_that_do_not_fit_are_named(clicks):
    _, store = clicks
    test, train = store.load("test"), store.load("train")
    with pytest.raises(DataError, match=rf"row {train.row.min():,} was scored and is not in the test part"):
        evaluate(store, row=[test.row[0], train.row.min()], score=[0.5, 0.5])
    with pytest.raises(DataError, match="2 rows and 1 scores"):
        evaluate(store, row=test.row[:2], score=[0.5])
    with pytest.raises(DataError, match="no row was scored"):
        evaluate(store, row=[], score=[])


def test_it_is_shown_to_people_and_written_for_programs(clicks, tmp_path):
    log, store = clicks
    test = store.load("test")
    table = evaluate(store, row=test.row, score=np.full(len(test), 0.05), log=log)
    out = io.StringIO()
    rich.print(table, file=out)
    Console(file=out, width=100).print(table)
    text = out.getvalue()
    assert all(
        name in text
        for name in (MODEL, *BASELINES, BEST, "AUC in users", "log loss", "tail items", "unseen in training")
    )
    assert "0.5000" in text
    record = json.loads(table.write(tmp_path / "deep" / "metrics.json").read_text())
    assert record == table.to_dict()
    assert record["slices"][0].keys() == {"name", "rows", "auc", "rival_auc", "positives"}
    assert record["rows"][1]["log_loss"] is None
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="file"):
        table.write(tmp_path / "file" / "metrics.json")


def test_a_store_without_users_and_items_has_no_baselines(tmp_path, clicks):
    _, store = clicks
    tables = {}
    for name in ("train", "test"):
        part = store.load(name)
        tables[name] = pa.table({
            "user_id": part.ids[:, 0], "item_id": part.ids[:, 1], "click": part.labels[:, 0], "@row": part.row,
        })  # fmt: skip
    bare = FeatureStore(tmp_path / "bare")
    words = {name: store.vocabulary(name) for name in ("user_id", "item_id")}
    bare.write(tables, schema=store.schema, vocabularies=words)
    table = evaluate(bare, row=bare.load("test").row, score=np.full(len(bare.load("test")), 0.5))
    assert [row.name for row in table.rows] == [MODEL, *TREES]
    assert (table.slices, table.row(MODEL).user_auc) == ((), None)
