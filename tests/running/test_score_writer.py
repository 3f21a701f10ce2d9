"""Scores as Parquet: whole or not at all."""

from __future__ import annotations

import csv
import io
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_mp import DCNv2, RankingDataModule, RankingModule
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.time_split import TimeSplit
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
        self.row = 7 + 3 * np.arange(ROWS)  # some rows of the log were rejected
        self.order = np.arange(ROWS)
        self.time = 1_700_000_000_000_000 + draw.integers(10**12, size=ROWS)
        self.user, self.item = draw.integers(len(USERS), size=ROWS), draw.integers(len(ITEMS), size=ROWS)
        price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float32")
        keys = {"@time": self.time, "@row": self.row, "@user": self.user, "@item": self.item}
        table = pa.table({"price": pa.array(draw.random(ROWS), pa.float32()), **keys})
        self.store.write(
            {"test": table}, schema=FeatureSchema(features=(price,)), users=pa.array(USERS), items=pa.array(ITEMS)
        )

    def predict_dataloader(self):
        codes = torch.tensor(np.stack([self.user, self.item, self.row], axis=1)[self.order])
        return DataLoader(codes, batch_size=30)


class Model(pl.LightningModule):
    def __init__(self, fail_at: int | None = None, keys: tuple[str, ...] = ("user", "item", "score")) -> None:
        super().__init__()
        self.fail_at, self.keys = fail_at, keys

    def predict_step(self, batch, batch_idx):
        if batch_idx == self.fail_at:
            raise RuntimeError("on purpose")
        score = torch.sigmoid(batch[:, :2].sum(1).half())
        answer = {"user": batch[:, 0], "item": batch[:, 1], "row": batch[:, 2], "score": score}
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


@pytest.mark.filterwarnings("ignore:.*predict_dataloader.*")
def test_with_their_rows_they_come_in_the_order_of_the_log_with_their_times(tmp_path, trainer, monkeypatch):
    data = Data(tmp_path / "store")
    data.order = np.random.default_rng().permutation(ROWS)
    monkeypatch.setattr("lightning_mp.running.ordered_scores._PIECE", 7)
    path = write_scores(trainer, Model(keys=("row", "user", "item", "score")), data, tmp_path / "scores.parquet")
    table = pq.read_table(path)
    assert table.column_names == ["row", "time", "user", "item", "score"]
    assert table["row"].to_pylist() == data.row.tolist()
    assert table["time"].type == pa.timestamp("us", "UTC")
    assert table["time"].cast(pa.int64()).to_pylist() == data.time.tolist()
    assert table["user"].to_pylist() == [USERS[code] for code in data.user]
    assert table["item"].to_pylist() == [ITEMS[code] for code in data.item]
    expected = torch.sigmoid(torch.tensor(data.user + data.item).half()).float().numpy()
    assert table["score"].to_numpy().tolist() == expected.tolist()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["scores.parquet", "store"]


@pytest.mark.filterwarnings("ignore:.*predict_dataloader.*")
def test_a_row_that_the_store_does_not_know_has_no_time(tmp_path, trainer):
    data = Data(tmp_path / "store")
    data.row = data.row + 3
    path = write_scores(trainer, Model(keys=("row", "user", "item", "score")), data, tmp_path / "scores.parquet")
    assert pq.read_table(path)["time"].cast(pa.int64()).to_pylist() == [*data.time[1:].tolist(), None]


LOG = """user;item;when;bought
ann;i1;2024-03-01 10:00:00;1
broken
bob;i1;2024-03-01 09:00:00;0
zoë;i2;2024-03-03 08:00:00;1
ann;i2;2024-03-02 11:30:00;0
ann;i1;2024-03-03 07:00:00;0
bob;i2;2024-03-03 07:30:00;1
"""


@pytest.mark.filterwarnings("ignore:.*predict_dataloader.*")
def test_rows_are_those_of_the_file_with_a_header_and_a_broken_line(tmp_path, trainer):
    (tmp_path / "log.csv").write_text(LOG, encoding="utf-8")
    columns = Columns(user="user", item="item", time="when", event=EventFlags(flags={"order": "bought"}),
                      time_zone="Europe/Berlin")  # fmt: skip
    data = RankingDataModule(
        str(tmp_path / "log.csv"), store=str(tmp_path / "store"), columns=columns, label=EventLabel(event="order"),
        features=[FeatureSpec(name="user", kind="id", role="user"), FeatureSpec(name="item", kind="id", role="item")],
        split=TimeSplit(validation=0.0, test=0.5), csv=CsvDialect(delimiter=";"), max_bad_share=0.5,
    )  # fmt: skip
    network = partial(DCNv2, embedding_dim=2, hidden=(4,))
    path = write_scores(trainer, RankingModule(network), data, tmp_path / "scores.parquet")
    source = list(csv.DictReader(io.StringIO(LOG), delimiter=";"))
    table = pq.read_table(path).to_pylist()
    assert [entry["row"] for entry in table] == [3, 5, 6]
    berlin = ZoneInfo("Europe/Berlin")
    for entry in table:
        line = source[entry["row"]]
        assert (entry["user"], entry["item"]) == (line["user"], line["item"])
        assert entry["time"] == datetime.fromisoformat(line["when"]).replace(tzinfo=berlin)


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
