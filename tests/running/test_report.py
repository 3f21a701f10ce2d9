"""Tables at the end of a test: by rows, a task each, and by lists."""

from __future__ import annotations

import json
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.models.retrieval import RetrievalModule
from lightning_mp.networks.two_tower import TwoTower
from lightning_mp.running.list_metrics_table import ListMetricsTable
from lightning_mp.running.metrics_table import MetricsTable
from lightning_mp.running.report import metrics_tables, report_test
from lightning_mp.schema import Feature, FeatureSchema

USERS, ITEMS, ROWS = 40, 12, 1500


class OfRows(pl.LightningModule):
    """Scores each task of a row by the item's code."""

    def __init__(self, tasks):
        super().__init__()
        self.tasks = tasks

    def predict_step(self, batch, batch_idx):
        score = (batch["target"].float() + 1) / (ITEMS + 1)
        return {"row": batch["row"], "score": score if self.tasks == 1 else torch.stack([score, 1 - score], 1)}


class OfLists(pl.LightningModule):
    """Ranks items by their code, for everyone."""

    exclude_seen, k = False, 5

    def list_scorer(self, store, version):
        assert isinstance(store, FeatureStore)
        return lambda users: np.tile(np.arange(len(store.items(version)), dtype=np.float32), (len(users), 1))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("shop"), np.random.default_rng()
    item = rng.integers(ITEMS, size=ROWS)
    click = rng.random(ROWS) < 0.3 + 0.04 * item
    table = pa.table({
        "item_id": item.astype(np.int32),
        "click": click.astype(np.float32),
        "order": (click & (rng.random(ROWS) < 0.5)).astype(np.float32),
        "@row": np.arange(ROWS), "@time": np.arange(ROWS), "@user": rng.integers(USERS, size=ROWS), "@item": item,
    })  # fmt: skip
    labels = [
        Feature(name=name, kind="numeric", role="label", source_dtype="double", stored_dtype="float32")
        for name in ("click", "order")
    ]
    item_id = Feature(
        name="item_id", kind="id", role="item", source_dtype="int64", stored_dtype="int32", vocabulary_size=ITEMS + 1
    )
    FeatureStore(folder / "store").write(
        {"train": table.slice(0, 1000), "test": table.slice(1000)},
        schema=FeatureSchema(features=(item_id, *labels)),
        vocabularies={"item_id": Vocabulary(list(range(ITEMS)))},
        users=pa.array([f"u{i}" for i in range(USERS)]),
        items=pa.array([f"i{i}" for i in range(ITEMS)]),
    )
    return RankingDataModule(store=str(folder / "store"), batch_size=128)


def trainer(folder):
    logger = CSVLogger(folder, name=None)
    return pl.Trainer(accelerator="cpu", logger=logger, enable_progress_bar=False, enable_checkpointing=False)


def test_one_score_is_one_table(data, tmp_path, capsys):
    running = trainer(tmp_path)
    tables = metrics_tables(running, OfRows(1), data)
    assert list(tables) == [""]
    assert isinstance(tables[""], MetricsTable)
    report_test(running, OfRows(1), data)
    assert json.loads((tmp_path / "version_0" / "metrics.json").read_text()) == tables[""].to_dict()
    assert "AUC in users" in capsys.readouterr().out


def test_each_task_has_a_table_of_its_own(data, tmp_path, capsys):
    report_test(trainer(tmp_path), OfRows(2), data)
    told = capsys.readouterr().out
    assert told.index("task `click`") < told.index("task `order`")
    found = {
        task: json.loads((tmp_path / "version_0" / f"metrics-{task}.json").read_text()) for task in ("click", "order")
    }
    test = data.store.load("test")
    for column, (task, sign) in enumerate((("click", 1), ("order", -1))):
        labels, scores = test.labels[:, column], sign * test.item
        ahead, behind = scores[labels > 0][:, None], scores[labels == 0]
        expected = ((ahead > behind) + 0.5 * (ahead == behind)).mean()
        assert found[task]["rows"][0]["auc"] == pytest.approx(expected, abs=1e-6)


def test_a_module_that_scores_all_items_is_judged_by_its_lists(data, tmp_path, capsys):
    running = trainer(tmp_path)
    table = metrics_tables(running, OfLists(), data)[""]
    assert isinstance(table, ListMetricsTable)
    assert (table.k, table.items) == (5, ITEMS)
    assert "own frequency" in [row.name for row in table.rows]
    report_test(running, OfLists(), data)
    assert json.loads((tmp_path / "version_0" / "metrics.json").read_text()) == table.to_dict()
    assert f"all {ITEMS} items ranked" in capsys.readouterr().out


def test_other_modules_and_other_data_have_no_table(data, tmp_path):
    class Silent(OfRows):
        def predict_step(self, batch, batch_idx):
            return batch["row"]

    assert metrics_tables(trainer(tmp_path), Silent(1), data) == {}
    assert metrics_tables(trainer(tmp_path), OfRows(1), None) == {}


def test_a_retrieval_module_stands_beside_the_rules(tmp_path, capsys):
    rng = np.random.default_rng()
    user = rng.integers(USERS, size=ROWS)
    item = (rng.integers(6, size=ROWS) + 6 * (user % 2)) % ITEMS
    table = pa.table({
        "user_id": (user + 1).astype(np.int32), "item_id": (item + 1).astype(np.int32),
        "order": np.ones(ROWS, np.float32),
        "@row": np.arange(ROWS), "@time": np.arange(ROWS), "@user": user, "@item": item,
    })  # fmt: skip
    ids = [
        Feature(name=f"{role}_id", kind="id", role=role, source_dtype="int64", stored_dtype="int32",
                vocabulary_size=size + 1)
        for role, size in (("user", USERS), ("item", ITEMS))
    ]  # fmt: skip
    label = Feature(name="order", kind="numeric", role="label", source_dtype="double", stored_dtype="float32")
    FeatureStore(tmp_path / "store").write(
        {"train": table.slice(0, 900), "validation": table.slice(900, 100), "test": table.slice(1000)},
        schema=FeatureSchema(features=(*ids, label)),
        vocabularies={"user_id": Vocabulary(list(range(USERS))), "item_id": Vocabulary(list(range(ITEMS)))},
        users=pa.array([f"u{i}" for i in range(USERS)]),
        items=pa.array([f"i{i}" for i in range(ITEMS)]),
    )
    shop = RankingDataModule(store=str(tmp_path / "store"), batch_size=128)
    network = partial(TwoTower, embedding_dim=8, hidden=(), output_dim=8)
    module = RetrievalModule(network, exclude_seen=False, k=5, optimizer=partial(torch.optim.Adam, lr=0.02))
    running = pl.Trainer(accelerator="cpu", max_epochs=3, logger=False, enable_progress_bar=False,
                         enable_checkpointing=False, enable_model_summary=False)  # fmt: skip
    running.fit(module, datamodule=shop)
    running.test(module, datamodule=shop, verbose=False)
    table = metrics_tables(running, module, shop)[""]
    assert isinstance(table, ListMetricsTable)
    assert [row.name for row in table.rows][:2] == ["model", "popularity"]
    assert table.row("model").ndcg == pytest.approx(float(running.callback_metrics["test_ndcg"]), abs=1e-4)
    assert table.row("model").ndcg > table.row("popularity").ndcg  # it knows the two tastes
    report_test(running, module, shop)
    assert "NDCG@5" in capsys.readouterr().out
