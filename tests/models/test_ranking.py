from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.errors import ConfigurationError, DataError, LightningMPWarning, SchemaError
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.optim.warmup_decay_lr import WarmupDecayLR
from lightning_mp.schema import Feature, FeatureSchema

ROWS = {"train": 600, "validation": 130, "test": 257}
SMALL = partial(DCNv2, embedding_dim=4, hidden=(16, 8))
FAST = partial(torch.optim.Adam, lr=3e-2)


def schema(width=1, size=20, **more):
    numbers = {"role": "item", "source_dtype": "double", "stored_dtype": "float16"}
    return FeatureSchema(
        features=(
            Feature(
                name="user", kind="id", role="user", source_dtype="int64", stored_dtype="int32", vocabulary_size=size
            ),
            Feature(name="price", kind="numeric", **numbers),
            Feature(name="taste", kind="vector", width=2, **numbers),
            Feature(name="label", kind="numeric", role="label", source_dtype="double", stored_dtype="float32"),
            *more.values(),
        )
    )


def rows(count, draw, *, soft=False):
    user, dense = draw.integers(0, 20, count), draw.normal(size=(count, 3))
    chance = 1 / (1 + np.exp(-(2 * np.sin(user) + dense @ [1.0, -2.0, 0.5] + dense[:, 0] * dense[:, 1])))
    return pa.table(
        {
            "user": user,
            "price": dense[:, 0],
            "taste": pa.FixedSizeListArray.from_arrays(pa.array(dense[:, 1:].ravel()), 2),
            "label": chance if soft else (draw.random(count) < chance).astype(float),
            "weight": draw.random(count) + 0.5,
            "@row": np.arange(count) + draw.integers(0, 10**6),
            "@user": user + 100,
            "@item": draw.integers(0, 9, count),
        }
    )


@pytest.fixture
def store(tmp_path):
    draw = np.random.default_rng(7)
    store = FeatureStore(tmp_path / "store")
    store.write({split: rows(count, draw) for split, count in ROWS.items()}, schema=schema())
    return store


@pytest.fixture
def data(store):
    return RankingDataModule(store=str(store.path), batch_size=64)


def trainer(tmp_path, **more):
    given = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": tmp_path,
    }
    return pl.Trainer(**{**given, **more})


def fitted(tmp_path, data, module=None, **more):
    pl.seed_everything(0, verbose=False)
    module = module or RankingModule(SMALL, optimizer=FAST)
    run = trainer(tmp_path, **more)
    run.fit(module, datamodule=data)
    return run, module


PRECISIONS = {
    "float32": dict,
    "bfloat16": lambda: {"precision": "bf16-mixed"},
    "float16": lambda: {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))]},
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_learns_and_logs_in_every_precision(tmp_path, data, precision):
    run, module = fitted(tmp_path, data, **PRECISIONS[precision]())
    assert set(run.callback_metrics) == {"train_loss", "val_loss", "val_auc", "val_log_loss"}
    assert run.callback_metrics["val_auc"] > 0.75
    tested = run.test(module, datamodule=data, verbose=False)[0]
    assert set(tested) == {"test_loss", "test_auc", "test_log_loss"}
    assert tested["test_auc"] > 0.75
    assert all(parameter.dtype == torch.float32 for parameter in module.parameters())


def test_what_it_logs_is_what_a_plain_count_gives(tmp_path, data):
    run, module = fitted(tmp_path, data, max_epochs=1)
    tested = run.test(module, datamodule=data, verbose=False)[0]
    table = data.store.load("test")
    batch = {"ids": torch.tensor(table.ids), "dense": torch.tensor(table.dense)}
    logits = module.double()(batch).detach().numpy()
    labels = table.labels[:, 0].astype(np.float64)
    loss = np.mean(np.log1p(np.exp(-logits * (2 * labels - 1))))
    won = np.sign(logits[labels == 1][:, None] - logits[labels == 0][None]) / 2 + 0.5
    assert tested["test_auc"] == pytest.approx(won.mean(), abs=1e-6)
    assert tested["test_log_loss"] == pytest.approx(loss, rel=1e-5)
    assert tested["test_loss"] == pytest.approx(loss, rel=1e-5)


def test_predictions_carry_the_keys_of_their_rows(tmp_path, data):
    run, module = fitted(tmp_path, data, max_epochs=1)
    batches = run.predict(module, datamodule=data)
    found = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    table = data.store.load("test")
    assert set(found) == {"score", "row", "user", "item"}
    for name in ("row", "user", "item"):
        assert found[name].tolist() == getattr(table, name).tolist()
    logits = module({"ids": torch.tensor(table.ids), "dense": torch.tensor(table.dense)})
    assert found["score"].dtype == torch.float32
    torch.testing.assert_close(found["score"], torch.sigmoid(logits), rtol=1e-5, atol=1e-6)


def test_a_preference_is_a_soft_target(tmp_path):
    draw = np.random.default_rng(3)
    store = FeatureStore(tmp_path / "soft")
    store.write({split: rows(count, draw, soft=True) for split, count in ROWS.items()}, schema=schema())
    data = RankingDataModule(store=str(store.path), batch_size=64)
    module = RankingModule(SMALL, optimizer=FAST, task="preference")
    with pytest.warns(LightningMPWarning, match="`val_auc` is undefined: all 130 targets are 1") as caught:
        run, _ = fitted(tmp_path, data, module, max_epochs=15)
    assert len([w for w in caught if w.category is LightningMPWarning]) == 1
    table = store.load("test")
    scores = torch.cat([b["score"] for b in run.predict(module, datamodule=data)]).numpy()
    assert np.corrcoef(scores, table.labels[:, 0])[0, 1] > 0.95


def test_weights_weigh_rows(tmp_path):
    weight = Feature(name="weight", kind="numeric", role="weight", source_dtype="double", stored_dtype="float32")
    store = FeatureStore(tmp_path / "weighted")
    store.write({s: rows(n, np.random.default_rng()) for s, n in ROWS.items()}, schema=schema(weight=weight))
    data = RankingDataModule(store=str(store.path), batch_size=1000)
    run, module = fitted(tmp_path, data, max_epochs=1)
    tested = run.test(module, datamodule=data, verbose=False)[0]
    table = store.load("test")
    logits = module({"ids": torch.tensor(table.ids), "dense": torch.tensor(table.dense)}).detach().double().numpy()
    losses = np.log1p(np.exp(-logits * (2 * table.labels[:, 0] - 1)))
    assert tested["test_loss"] == pytest.approx(np.average(losses, weights=table.weight), rel=1e-5)
    assert tested["test_log_loss"] == pytest.approx(losses.mean(), rel=1e-5)


def test_a_checkpoint_knows_its_schema_and_builds_the_network(tmp_path, data):
    run, module = fitted(tmp_path, data, max_epochs=1)
    file = tmp_path / "last.ckpt"
    run.save_checkpoint(file)
    record = torch.load(file, weights_only=True)["lightning_mp"]
    assert record == {
        "schema": data.schema.to_json(),
        "digest": data.schema.digest,
        "module": "lightning_mp.models.ranking.RankingModule",
        "network": "lightning_mp.networks.dcn_v2.DCNv2",
        "store": str(data.store.path),
    }
    loaded = RankingModule.load_from_checkpoint(file, network=SMALL, weights_only=True)
    assert loaded.schema == data.schema
    batch = next(iter(data.test_dataloader()))
    assert torch.equal(loaded(batch), module(batch))
    again = trainer(tmp_path).test(RankingModule(SMALL), datamodule=data, ckpt_path=file, verbose=False)
    assert again == run.test(module, datamodule=data, verbose=False)


def test_training_goes_on_from_a_checkpoint(tmp_path, store):
    def data():
        return RankingDataModule(store=str(store.path), batch_size=64)

    def states(run, module):
        return {**module.state_dict(), "optimizer": run.optimizers[0].state_dict()["state"][0]["exp_avg"]}

    whole = states(*fitted(tmp_path, data(), max_epochs=2))
    run, _ = fitted(tmp_path, data(), max_epochs=1)
    run.save_checkpoint(tmp_path / "half.ckpt")
    module, run = RankingModule(SMALL, optimizer=FAST), trainer(tmp_path, max_epochs=2)
    run.fit(module, datamodule=data(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    resumed = states(run, module)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_store_with_another_schema_is_refused(tmp_path, data):
    run, _ = fitted(tmp_path, data, max_epochs=1)
    run.save_checkpoint(tmp_path / "last.ckpt")
    other = FeatureStore(tmp_path / "other")
    draw = np.random.default_rng()
    other.write({s: rows(n, draw) for s, n in ROWS.items()}, schema=schema(size=21))
    data = RankingDataModule(store=str(other.path))
    with pytest.raises(SchemaError) as caught:
        trainer(tmp_path).test(RankingModule(SMALL), datamodule=data, ckpt_path=tmp_path / "last.ckpt")
    assert caught.value.problem == (
        "feature `user` differs in `vocabulary_size`: the data has 21, the checkpoint has 20"
    )


class OtherModule(RankingModule):
    """A subclass: its checkpoints are its own."""


def test_another_classs_checkpoint_is_refused(tmp_path, data):
    run, _ = fitted(tmp_path, data, OtherModule(SMALL), max_epochs=1)
    run.save_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(
        ConfigurationError, match=r"the checkpoint is of `.*OtherModule`, and `.*RankingModule` is loading it"
    ):
        RankingModule.load_from_checkpoint(tmp_path / "other.ckpt", network=SMALL, weights_only=True)
    torch.save({"state_dict": {}, "pytorch-lightning_version": pl.__version__}, tmp_path / "bare.ckpt")
    with pytest.raises(ConfigurationError, match="no module of this package wrote it"):
        RankingModule.load_from_checkpoint(tmp_path / "bare.ckpt", network=SMALL, weights_only=True)


def loader(labels, **more):
    count = len(labels)
    ids, dense = torch.zeros(count, 1, dtype=torch.int64), torch.randn(count, 3)
    return DataLoader([{"ids": ids, "dense": dense, "labels": labels, **more}], batch_size=None)


def test_bare_loaders_take_a_built_network_only(tmp_path):
    labels = torch.tensor([0.0, 1.0])
    with pytest.raises(ConfigurationError) as caught:
        trainer(tmp_path).fit(RankingModule(SMALL), loader(labels), loader(labels))
    assert caught.value.problem == "the network cannot be built: the Trainer has no datamodule with a `schema`"
    assert "RankingModule(DCNv2(schema))" in caught.value.hint
    module = RankingModule(DCNv2(schema(), hidden=(4,)))
    run = trainer(tmp_path, max_epochs=1)
    run.fit(module, loader(labels), loader(labels))
    run.save_checkpoint(tmp_path / "bare.ckpt")
    network = DCNv2(schema(), hidden=(4,))
    loaded = RankingModule.load_from_checkpoint(tmp_path / "bare.ckpt", network=network, weights_only=True)
    assert torch.equal(loaded.network.head.weight, module.network.head.weight)


class Wide(nn.Module):
    """A network with a mistake: logits (B, 1)."""

    def __init__(self, schema):
        super().__init__()
        self.linear = nn.Linear(schema.dense_width, 1)

    def forward(self, batch):
        return self.linear(batch["dense"].float())


class Schemaless(torch.nn.Linear):
    def __init__(self, width=3):
        super().__init__(width, 1)


def test_mistakes_of_a_network_are_named(tmp_path, data):
    with pytest.raises(
        ConfigurationError, match=r"`Schemaless` got the schema as its first parameter `width`: empty"
    ) as told:
        fitted(tmp_path, data, RankingModule(Schemaless))
    assert told.value.hint == "let its first parameter be `schema`, the data's `FeatureSchema`"
    with pytest.raises(ConfigurationError, match=r"logits of shape \(64, 1\), the labels have \(64,\)"):
        fitted(tmp_path, data, RankingModule(Wide))
    with pytest.raises(ConfigurationError, match="network `Wide` cannot be built from a schema alone"):
        fitted(tmp_path, data, RankingModule(partial(Wide, width=3)))
    with pytest.raises(ConfigurationError, match=r"network `.*<lambda>` gave a int"):
        fitted(tmp_path, data, RankingModule(lambda schema: 3))
    with pytest.raises(ConfigurationError, match="`task` must be 'click' or 'preference', got 'clicks'"):
        RankingModule(SMALL, task="clicks")
    with pytest.raises(ConfigurationError, match="the network is not built yet"):
        RankingModule(SMALL)({})


@pytest.mark.parametrize("value", [1.5, -0.25, float("nan")])
def test_labels_outside_their_range_are_refused(tmp_path, value):
    module = RankingModule(DCNv2(schema(), hidden=(4,)))
    with pytest.raises(DataError) as caught:
        trainer(tmp_path).test(module, loader(torch.tensor([0.0, 1.0, value])))
    assert caught.value.problem == f"label {value} at row 2 of the batch is outside [0, 1], task 'click'"


def test_building_twice_is_building_once(data):
    module = RankingModule(SMALL)
    module.build(data.schema)
    network = module.network
    module.build(data.schema)
    assert module.network is network
    with pytest.raises(
        SchemaError, match="feature `user` differs in `vocabulary_size`: the model has 20, the data has 21"
    ):
        module.build(schema(size=21))


def test_its_three_override_points(tmp_path, data):
    class Ranker(RankingModule):
        def loss(self, logits, batch):
            return super().loss(logits, batch) * 2

        def score(self, logits):
            return logits

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run, module = fitted(tmp_path, data, Ranker(SMALL), max_epochs=1)
    assert isinstance(run.optimizers[0], torch.optim.SGD)
    assert run.callback_metrics["val_loss"] == pytest.approx(2 * run.callback_metrics["val_log_loss"].item(), rel=1e-5)
    assert run.predict(module, datamodule=data)[0]["score"].min() < 0


def test_a_schedule_and_an_optimizer_of_ones_own(tmp_path, data):
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    module = RankingModule(SMALL, optimizer=partial(torch.optim.AdamW, lr=1e-2), lr_scheduler=schedule)
    run, _ = fitted(tmp_path, data, module, max_epochs=2)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(2.5e-3)
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.1, patience=0, threshold=10.0)
    run, _ = fitted(tmp_path, data, RankingModule(SMALL, lr_scheduler=plateau), max_epochs=2)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-5)


def test_our_schedule_is_stepped_each_batch_and_given_the_length_of_an_epoch(tmp_path, data):
    schedule = partial(WarmupDecayLR, warmup_steps=4, decay_every_n_epochs=1)
    module = RankingModule(SMALL, optimizer=partial(torch.optim.AdamW, lr=1e-4), lr_scheduler=schedule)
    run, _ = fitted(tmp_path, data, module, max_epochs=2, accumulate_grad_batches=2)
    steps = run.global_step
    found = run.lr_scheduler_configs[0].scheduler
    assert (found.last_epoch, found.steps_per_epoch) == (steps, steps // 2)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-4 * 0.9**2)


def test_a_schedule_over_epochs_refuses_data_without_a_length(tmp_path):
    class Endless(IterableDataset):
        def __iter__(self):
            yield {"ids": torch.zeros(4, 1, dtype=torch.long), "dense": torch.zeros(4, 3), "labels": torch.zeros(4)}

    module = RankingModule(SMALL(schema()), lr_scheduler=WarmupDecayLR)
    with pytest.raises(ConfigurationError, match="`WarmupDecayLR` needs the length of an epoch"):
        trainer(tmp_path, max_steps=2).fit(module, *[DataLoader(Endless(), batch_size=None)] * 2)


def test_weight_decay_is_kept_off_embeddings_and_biases(tmp_path, data):
    module = RankingModule(SMALL, optimizer=partial(torch.optim.AdamW, lr=1e-3), weight_decay=0.5)
    run, _ = fitted(tmp_path, data, module, max_epochs=1)
    decayed, kept = run.optimizers[0].param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.5, 0.0)
    tables = {id(parameter) for parameter in module.network.embedding.parameters()}
    assert tables <= {id(parameter) for parameter in kept["params"]}
    assert {parameter.ndim for parameter in decayed["params"]} == {2}


def test_a_compiled_network_trains(tmp_path, data):
    torch._dynamo.reset()
    module = RankingModule(lambda schema: torch.compile(SMALL(schema), backend="aot_eager"), optimizer=FAST)
    run, _ = fitted(tmp_path, data, module)
    assert run.callback_metrics["val_auc"] > 0.75
    run.save_checkpoint(tmp_path / "last.ckpt")
    record = torch.load(tmp_path / "last.ckpt", weights_only=True)["lightning_mp"]
    assert record["network"] == "lightning_mp.networks.dcn_v2.DCNv2"
