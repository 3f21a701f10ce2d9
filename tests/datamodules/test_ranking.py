from __future__ import annotations

import pickle
from functools import partial
from itertools import chain

import lightning.pytorch as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import EventLabel
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.synthetic.settings import SyntheticLog
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.errors import ArtifactError, ConfigurationError, DataError
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.dcn_v2 import DCNv2

COLUMNS = Columns(
    user="user_id",
    item="item_id",
    time="event_time",
    event=EventFlags(flags={"click": "click", "cart": "cart", "order": "order"}),
)
FEATURES = [
    FeatureSpec(name="user", kind="id", role="user"),
    FeatureSpec(name="item", kind="id", role="item"),
    FeatureSpec(name="device", kind="categorical"),
    FeatureSpec(name="hour", kind="categorical", of="hour"),
    FeatureSpec(name="price", kind="numeric", role="item", transform="log1p_zscore"),
    FeatureSpec(name="position", kind="numeric"),
]
SMALL = SyntheticLog(impressions=3000, users=60, items=40, days=7)


def module(tmp_path, **more):
    given = {
        "path": "synthetic",
        "store": str(tmp_path / "store"),
        "columns": COLUMNS,
        "label": EventLabel(event="click"),
        "features": FEATURES,
        "synthetic": SMALL,
        "batch_size": 256,
    }
    return RankingDataModule(**{**given, **more})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    data = module(folder)
    data.prepare_data()
    return data


def trainer(**more):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(accelerator="cpu", devices=1, **{**quiet, "max_epochs": 1, **more})


def test_from_a_synthetic_log_to_the_rows_of_that_log(prepared):
    log = pq.read_table(prepared.log_path)
    prepared.setup("fit")
    seen = []
    loaders = [prepared.train_dataloader(), prepared.val_dataloader(), prepared.test_dataloader()]
    for loader in loaders:
        for batch in loader:
            rows = log.take(batch["row"].numpy())
            assert batch["labels"].tolist() == [float(value) for value in rows["click"].to_pylist()]
            keys = prepared.store.users().take(pa.array(batch["group"].numpy()))
            assert keys.to_pylist() == rows["user_id"].to_pylist()
            devices = prepared.store.vocabulary("device").decode(batch["ids"][:, 2])
            assert devices.tolist() == rows["device"].to_pylist()
            hours = rows["event_time"].to_numpy().astype("datetime64[h]").astype(int) % 24
            decoded = prepared.store.vocabulary("hour").decode(batch["ids"][:, 3])
            assert all(found in (None, hour) for found, hour in zip(decoded, hours, strict=True))
            seen += batch["row"].tolist()
    assert sorted(seen) == list(range(log.num_rows))
    assert [f.name for f in prepared.schema.ids] == ["user", "item", "device", "hour"]


def test_preparing_again_changes_nothing_and_other_settings_add_a_version(prepared):
    before = {file: file.stat().st_mtime_ns for file in prepared.store.path.rglob("*")}
    log = prepared.log_path.stat().st_mtime_ns
    module(prepared.store.path.parent).prepare_data()
    assert {file: file.stat().st_mtime_ns for file in prepared.store.path.rglob("*")} == before
    assert prepared.log_path.stat().st_mtime_ns == log
    other = module(prepared.store.path.parent, split=TimeSplit(validation=0.2))
    prepared.setup("fit")
    other.prepare_data()
    other.setup("fit")
    assert prepared.store.versions() == (1, 2)
    assert len(prepared.val_dataloader().dataset) < len(other.val_dataloader().dataset)


def test_fit_test_and_predict_with_a_real_trainer(tmp_path):
    data = module(tmp_path)
    model = RankingModule(partial(DCNv2, embedding_dim=4, hidden=(8,)), optimizer=partial(torch.optim.Adam, lr=1e-2))
    run = trainer(max_epochs=2)
    run.fit(model, datamodule=data)
    assert run.global_step == 2 * len(data.train_dataloader())
    assert set(run.test(model, datamodule=data, verbose=False)[0]) == {"test_loss", "test_auc", "test_log_loss"}
    scored = run.predict(model, datamodule=data)
    table = data.store.load("test")
    assert torch.cat([batch["item"] for batch in scored]).tolist() == table.item.tolist()


class Seen(RankingModule):
    """Keeps what it was trained on."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.rows = []

    def training_step(self, batch, batch_idx):
        self.rows.append(batch["row"].tolist())
        return super().training_step(batch, batch_idx)


def rows_seen(data, **more):
    model = Seen(partial(DCNv2, embedding_dim=2, hidden=(4,), dropout=0.5))
    pl.seed_everything(1, verbose=False)
    trainer(**more).fit(model, datamodule=data)
    return model.rows, model.state_dict()


def test_each_epoch_has_its_own_order_whatever_else_the_run_draws(tmp_path):
    data = module(tmp_path)
    rows, weights = rows_seen(data, max_epochs=2)
    first, second = (list(chain.from_iterable(half)) for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]))
    assert sorted(first) == sorted(second)
    assert first != second
    again, same_weights = rows_seen(module(tmp_path), max_epochs=2, limit_val_batches=0)
    assert again == rows
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)
    other, _ = rows_seen(module(tmp_path, seed=1), max_epochs=1)
    assert list(chain.from_iterable(other)) not in (first, second)


class WithBatchNorm(nn.Module):
    """Refuses, as batch normalisation does, a training batch of one row."""

    def __init__(self, schema):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(schema.dense_width), nn.Linear(schema.dense_width, 1)

    def forward(self, batch):
        return self.linear(self.norm(batch["dense"].float())).squeeze(1)


def test_a_single_left_over_row_joins_the_batch_before_it(tmp_path):
    data = module(tmp_path)
    data.prepare_data()
    rows = data.store.manifest.rows("train")
    size = next(size for size in range(50, rows) if rows % size == 1)
    data = module(tmp_path, batch_size=size)
    run = trainer()
    run.fit(RankingModule(WithBatchNorm), datamodule=data)
    assert run.global_step == rows // size
    assert [len(batch["row"]) for batch in data.train_dataloader()][-1] == size + 1


def test_a_store_without_validation_rows_trains(tmp_path):
    data = module(tmp_path, split=TimeSplit(validation=0.0))
    run = trainer()
    with pytest.warns(UserWarning, match="Total length of `list` across ranks is zero"):
        run.fit(RankingModule(partial(DCNv2, hidden=(4,))), datamodule=data)
    assert set(run.callback_metrics) == {"train_loss"}


def test_a_store_as_it_stands(tmp_path, prepared):
    data = RankingDataModule(store=str(prepared.store.path))
    data.prepare_data()
    assert data.log_path is None
    assert data.schema == FeatureStore(prepared.store.path).schema
    assert pickle.loads(pickle.dumps(data)).schema == data.schema
    with pytest.raises(ArtifactError, match="holds no `LATEST`: it is not a feature store"):
        _ = RankingDataModule(store=str(tmp_path / "none")).schema


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ConfigurationError, match="`path` names a log, and `columns` is missing"):
        RankingDataModule("log.csv", store="store")
    with pytest.raises(ConfigurationError, match="`batch_size` must be at least 1, got 0"):
        RankingDataModule(store="store", batch_size=0)
    with pytest.raises(DataError, match=r"nothing.csv"):
        module(tmp_path, path=str(tmp_path / "nothing.csv")).prepare_data()
    assert not (tmp_path / "store").exists()
    store = FeatureStore(tmp_path / "plain")
    store.write(pa.table({"x": [1.0]}))
    with pytest.raises(DataError, match="has no test rows"):
        RankingDataModule(store=str(store.path)).test_dataloader()
