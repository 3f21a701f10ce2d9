"""Scores as Parquet: whole or not at all."""

from __future__ import annotations

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError
from lightning_mp.running.score_writer import write_scores
from lightning_mp.schema import Feature, FeatureSchema

ROWS, USERS, ITEMS = 50, ["ann", "bob", "zoë"], ["i\n1", "i2"]


class Data(pl.LightningDataModule):
    """Two batches of codes over a store with odd keys."""

    def __init__(self, folder) -> None:
        super().__init__()
        self.store = FeatureStore(folder)
        draw = np.random.default_rng()
        self.user, self.item = draw.integers(len(USERS), size=ROWS), draw.integers(len(ITEMS), size=ROWS)
        price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float32")
        keys = {"@time": np.arange(ROWS), "@row": np.arange(ROWS), "@user": self.user, "@item": self.item}
        table = pa.table({"price": pa.array(draw.random(ROWS), pa.float32()), **keys})
        self.store.write(
            {"test": table}, schema=FeatureSchema(features=(price,)), users=pa.array(USERS), items=pa.array(ITEMS)
        )

    def predict_dataloader(self):
        codes = torch.tensor(np.stack([self.user, self.item], axis=1))
        return DataLoader(codes, batch_size=30)


class Model(pl.LightningModule):
    def __init__(self, fail_at: int | None = None, keys: tuple[str, ...] = ("user", "item", "score")) -> None:
        super().__init__()
        self.fail_at, self.keys = fail_at, keys

    def predict_step(self, batch, batch_idx):
        if batch_idx == self.fail_at:
            raise RuntimeError("on purpose")
        answer = {"user": batch[:, 0], "item": batch[:, 1], "score": torch.sigmoid(batch.sum(1).half())}
        return {name: answer[name] for name in self.keys}


@pytest.fixture
def trainer(tmp_path):
    return pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
    )


@pytest.mark.filterwarnings("ignore:.*predict_dataloader.*")
def test_keys_and_scores_come_back_in_order(tmp_path, trainer):
    data = Data(tmp_path / "store")
    path = write_scores(trainer, Model(), data, tmp_path / "deep" / "scores.parquet")
    table = pq.read_table(path)
    assert table["user"].to_pylist() == [USERS[code] for code in data.user]
    assert table["item"].to_pylist() == [ITEMS[code] for code in data.item]
    expected = torch.sigmoid(torch.tensor(data.user + data.item).half()).float().numpy()
    assert table["score"].to_numpy().tolist() == expected.tolist()


def test_a_run_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, trainer):
    (tmp_path / "scores.parquet").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="on purpose"):
        write_scores(trainer, Model(fail_at=1), Data(tmp_path / "store"), tmp_path / "scores.parquet")
    assert (tmp_path / "scores.parquet").read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["scores.parquet", "store"]
    assert all(type(callback).__name__ != "_ScoreWriter" for callback in trainer.callbacks)


def test_a_step_that_gives_no_score_is_named(tmp_path, trainer):
    with pytest.raises(ConfigurationError, match=r"`Model.predict_step` gave no `score`"):
        write_scores(trainer, Model(keys=("user", "item")), Data(tmp_path / "store"), tmp_path / "scores.parquet")


def test_a_datamodule_without_a_store_is_refused(tmp_path, trainer):
    with pytest.raises(ConfigurationError, match="found no feature store"):
        write_scores(trainer, Model(), None, tmp_path / "scores.parquet")


class SeveralTasks(Model):
    def predict_step(self, batch, batch_idx):
        answer = super().predict_step(batch, batch_idx)
        return {**answer, "score": torch.stack([answer["score"], batch[:, 0].half() / 4], dim=1)}


def test_a_column_a_task(tmp_path, trainer):
    data = Data(tmp_path / "store")
    with pytest.raises(ConfigurationError, match=r"gave 2 scores a row, the store has 0 labels"):
        write_scores(trainer, SeveralTasks(), data, tmp_path / "scores.parquet")
    label = {"kind": "numeric", "role": "label", "source_dtype": "float", "stored_dtype": "float32"}
    schema = FeatureSchema(features=tuple(Feature(name=name, **label) for name in ("click", "order")))
    keys = {"@time": np.arange(ROWS), "@row": np.arange(ROWS), "@user": data.user, "@item": data.item}
    table = pa.table({"click": np.ones(ROWS), "order": np.zeros(ROWS), **keys})
    data.store.write({"test": table}, schema=schema, users=pa.array(USERS), items=pa.array(ITEMS))
    found = pq.read_table(write_scores(trainer, SeveralTasks(), data, tmp_path / "scores.parquet"))
    assert found.column_names == ["user", "item", "score_click", "score_order"]
    assert found["score_order"].to_pylist() == (data.user / 4).tolist()
