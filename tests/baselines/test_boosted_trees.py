from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp.baselines.boosted_trees import boosted_trees
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.auc import AUC
from lightning_mp.schema import Feature, FeatureSchema

pytest.importorskip("lightgbm")


def auc(scores, labels):
    metric = AUC()
    metric.update(torch.from_numpy(scores), torch.from_numpy(labels))
    return metric.compute().item()


def stored(folder, *, rows=6000, keys=True, parts=("train", "validation", "test"), labelled=True, seed=None):
    """Clicks that depend on a number, on a category, and on who the user is."""
    rng = np.random.default_rng(seed)
    number, category = rng.normal(size=rows).astype(np.float32), rng.integers(1, 6, rows).astype(np.int32)
    user, item = rng.integers(0, 200, rows), rng.integers(0, 30, rows)
    taste = rng.normal(size=200)
    logit = 1.5 * np.sin(2 * number) + (category - 3) + taste[user]
    table = pa.table({
        "category": category,
        "number": number,
        "click": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.float32),
        "@row": np.arange(rows),
        "@time": np.arange(rows) // 3,
        **({"@user": user, "@item": item} if keys else {}),
    })  # fmt: skip
    features = [
        Feature(name="category", kind="categorical", role="item", source_dtype="int64", stored_dtype="int32",
                vocabulary_size=6),
        Feature(name="number", kind="numeric", role="user", source_dtype="double", stored_dtype="float32"),
        Feature(name="click", kind="numeric", role="label", source_dtype="double", stored_dtype="float32"),
    ]  # fmt: skip
    if not labelled:
        features, table = features[:2], table.drop_columns("click")
    store = FeatureStore(folder / "store")
    cuts = np.linspace(0, rows, len(parts) + 1).astype(int)
    names = {"users": pa.array([f"u{i}" for i in range(200)]), "items": pa.array([f"i{i}" for i in range(30)])}
    store.write(
        {name: table.slice(a, b - a) for name, a, b in zip(parts, cuts[:-1], cuts[1:], strict=True)},
        schema=FeatureSchema(features=tuple(features)),
        vocabularies={"category": Vocabulary([1, 2, 3, 4, 5])},
        **(names if keys else {}),
    )
    true = 1 / (1 + np.exp(-logit))
    return store, true


def test_it_learns_numbers_categories_and_users(tmp_path):
    store, true = stored(tmp_path)
    test = store.load("test")
    scores = boosted_trees(store, threads=1)
    assert scores.shape == (len(test),)
    assert ((scores > 0) & (scores < 1)).all()
    best = auc(true[test.row], test.labels[:, 0])
    assert auc(scores, test.labels[:, 0]) > 0.5 + 0.75 * (best - 0.5)
    assert (boosted_trees(store, threads=1) == scores).all()


def test_without_keys_or_validation_it_has_the_features_alone(tmp_path):
    store, _ = stored(tmp_path, keys=False, parts=("train", "test"))
    test = store.load("test")
    assert auc(boosted_trees(store, threads=1, max_rows=1000), test.labels[:, 0]) > 0.6


def test_the_labels_of_the_scored_part_are_never_seen(tmp_path):
    store, _ = stored(tmp_path, seed=5)
    scores = boosted_trees(store, threads=1)
    other = FeatureStore(tmp_path / "turned")
    parts = {}
    for name in ("train", "validation", "test"):
        table = store.load(name)
        labels = table.labels[:, 0] if name != "test" else 1 - table.labels[:, 0]
        parts[name] = pa.table({
            "category": table.ids[:, 0], "number": table.dense[:, 0], "click": labels, "@row": table.row,
            "@time": table.time, "@user": table.user, "@item": table.item,
        })  # fmt: skip
    other.write(
        parts,
        schema=store.schema,
        vocabularies={"category": store.vocabulary("category")},
        users=store.users(),
        items=store.items(),
    )
    again = dict(zip(other.load("test").row.tolist(), boosted_trees(other, threads=1).tolist(), strict=True))
    first = dict(zip(store.load("test").row.tolist(), scores.tolist(), strict=True))
    np.testing.assert_allclose([again[row] for row in first], list(first.values()), atol=0.05)
    assert np.corrcoef([again[row] for row in first], list(first.values()))[0, 1] > 0.99


def test_what_it_cannot_train_on_is_named(tmp_path):
    store, _ = stored(tmp_path)
    with pytest.raises(DataError, match="has no later part"):
        boosted_trees(store, part="later")
    with pytest.raises(ConfigurationError, match="`rounds` must be above 0, got 0"):
        boosted_trees(store, rounds=0)
    (tmp_path / "bare").mkdir()
    bare, _ = stored(tmp_path / "bare", labelled=False)
    with pytest.raises(DataError, match="has 0 labels"):
        boosted_trees(bare)
