from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pytest
import rich
from rich.console import Console

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import DataError
from lightning_mp.running.evaluate_lists import MODEL, evaluate_lists
from lightning_mp.schema import Feature, FeatureSchema

USERS, ITEMS, ROWS = 150, 40, 6000
RULES = ["popularity", "popularity, latest tenth of the time", "item-kNN", "item-kNN, latest first", "Markov", "EASE"]


def stored(folder, *, keys=True, parts=("train", "validation", "test"), labelled=True):
    """Users of two tastes; user 0 comes in the test part alone."""
    rng = np.random.default_rng()
    user = rng.integers(1, USERS, ROWS)
    item = np.where(
        rng.random(ROWS) < 0.8, (rng.zipf(1.6, ROWS) % 20) + 20 * (user % 2), rng.integers(ITEMS, size=ROWS)
    )
    item, taken = item % ITEMS, rng.random(ROWS) < 0.7
    user[-5:], taken[-5:] = 0, True
    table = pa.table({
        "item_id": item.astype(np.int32),
        **({"taken": taken.astype(np.float32)} if labelled else {}),
        "@row": np.arange(ROWS), "@time": np.sort(rng.integers(0, 10**9, ROWS)),
        **({"@user": user, "@item": item} if keys else {}),
    })  # fmt: skip
    features = [
        Feature(
            name="item_id", kind="id", role="item", source_dtype="int64", stored_dtype="int32", vocabulary_size=ITEMS
        ),
        Feature(name="taken", kind="numeric", role="label", source_dtype="double", stored_dtype="float32"),
    ]
    store = FeatureStore(folder / "store")
    cuts = (np.array([0, 0.7, 0.8, 1]) * ROWS).astype(int)[: len(parts) + 1]
    names = {"users": pa.array([f"u{i}" for i in range(USERS)]), "items": pa.array([f"i{i}" for i in range(ITEMS)])}
    store.write(
        {name: table.slice(a, b - a) for name, a, b in zip(parts, cuts[:-1], cuts[1:], strict=True)},
        schema=FeatureSchema(features=tuple(features if labelled else features[:1])),
        vocabularies={"item_id": Vocabulary(list(range(1, ITEMS)))},
        **(names if keys else {}),
    )
    return store


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("shop"))


def by_hand(store, scores, k, *, exclude_seen):
    """NDCG of each user, list by list."""
    test, past = store.load("test"), [store.load("train"), store.load("validation")]
    values = {}
    for user in range(USERS):
        seen = {i for t in past for u, i in zip(t.user, t.item, strict=True) if u == user} if exclude_seen else set()
        took = test.labels[:, 0] > 0 if test.labels.shape[1] else np.ones(len(test), bool)
        relevant = set(test.item[(test.user == user) & took].tolist()) - seen
        if relevant:
            order = [i for i in np.argsort(-scores[user]) if i not in seen][:k]
            got = sum(1 / np.log2(place + 2) for place, i in enumerate(order) if i in relevant)
            values[user] = got / sum(1 / np.log2(place + 2) for place in range(min(k, len(relevant))))
    return values


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_a_model_and_the_rules_stand_on_the_same_lists(shop, exclude_seen):
    scores = np.random.default_rng().normal(size=(USERS, ITEMS))
    table = evaluate_lists(shop, lambda users: scores[users], exclude_seen=exclude_seen, k=7)
    expected = by_hand(shop, scores, 7, exclude_seen=exclude_seen)
    assert table.row(MODEL).ndcg == pytest.approx(np.mean(list(expected.values())))
    assert (table.users, table.items, table.k) == (len(expected), ITEMS, 7)
    names = [row.name for row in table.rows]
    assert names == [MODEL, *(RULES if exclude_seen else [*RULES[:2], "own frequency", *RULES[2:]])]
    rules = [row for row in table.rows if row.name != MODEL]
    assert table.rival == max(rules, key=lambda row: row.ndcg).name


def test_a_random_model_is_told_that_rules_win(shop):
    scores = np.random.default_rng().normal(size=(USERS, ITEMS))
    table = evaluate_lists(shop, lambda users: scores[users], exclude_seen=False)
    lost = [note for note in table.notes if note.startswith("the model does not beat ")]
    assert any(f"`{table.rival}`" in note for note in lost)
    doubt = [note for note in table.notes if note.startswith(f"NDCG@10 of the model less that of `{table.rival}`: -")]
    assert len(doubt) == 1
    assert doubt[0].endswith("which decides between them")


def test_a_model_that_knows_the_answer_beats_every_rule(shop):
    test = shop.load("test")
    scores = np.zeros((USERS, ITEMS))
    scores[test.user[test.labels[:, 0] > 0], test.item[test.labels[:, 0] > 0]] = 1
    table = evaluate_lists(shop, lambda users: scores[users], exclude_seen=False)
    assert table.row(MODEL).ndcg == 1
    assert table.notes[0] == f"the model beats every baseline; the strongest is `{table.rival}`"
    slices = {part.name: part for part in table.slices}
    assert slices["new users"].users == 1  # user 0
    assert slices["new users"].users + slices["known users"].users == table.users
    assert {"head items", "tail items"} <= slices.keys()
    assert all(slices[name].ndcg == 1 >= slices[name].rival_ndcg for name in ("new users", "known users"))


def test_without_a_model_the_rules_stand_alone(shop):
    table = evaluate_lists(shop, exclude_seen=False)
    assert MODEL not in [row.name for row in table.rows]
    assert all(part.ndcg is None for part in table.slices)
    assert not table.notes


def test_many_users_are_drawn_and_that_is_said(shop):
    table = evaluate_lists(shop, exclude_seen=False, max_users=30)
    assert table.users == 30
    assert table.notes[0].startswith("ranked for 30 of 1")
    assert evaluate_lists(shop, exclude_seen=False, max_users=30) == table


def test_rows_without_labels_are_all_taken(tmp_path):
    store = stored(tmp_path, labelled=False)
    scores = np.random.default_rng().normal(size=(USERS, ITEMS))
    table = evaluate_lists(store, lambda users: scores[users], exclude_seen=False)
    expected = by_hand(store, scores, 10, exclude_seen=False)
    assert table.row(MODEL).ndcg == pytest.approx(np.mean(list(expected.values())))


def test_it_is_shown_to_people_and_written_for_programs(shop, tmp_path):
    scores = np.random.default_rng().normal(size=(USERS, ITEMS))
    table = evaluate_lists(shop, lambda users: scores[users])
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    rich.print(table, file=out)
    text = out.getvalue()
    assert all(word in text for word in (MODEL, *RULES, "NDCG@10", "recall@10", "MRR", "tail items", "all 40 items"))
    record = json.loads(table.write(tmp_path / "metrics.json").read_text())
    assert record == table.to_dict()
    assert record["rows"][0].keys() == {"name", "ndcg", "recall", "hit_rate", "mrr"}


def test_stores_that_cannot_be_ranked_are_named(tmp_path, shop):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="has no test part"):
        evaluate_lists(stored(tmp_path / "a", parts=("train", "validation")))
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match="name no users and items"):
        evaluate_lists(stored(tmp_path / "b", keys=False))
    with pytest.raises(KeyError):
        evaluate_lists(shop).row("LightGCN")
