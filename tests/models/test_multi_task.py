from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.functional import binary_cross_entropy

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.errors import ConfigurationError, DataError, SchemaError
from lightning_mp.models.multi_task import MultiTaskModule
from lightning_mp.models.ranking import RankingModule
from lightning_mp.networks.mmoe import MMoE
from lightning_mp.schema import Feature, FeatureSchema

TASKS = ("click", "cart", "order")
ROWS = {"train": 4000, "validation": 1000, "test": 1500}
SMALL = partial(MMoE, tasks=TASKS, embedding_dim=4, experts=2, expert_hidden=(16,), tower_hidden=(8,))
FAST = partial(torch.optim.Adam, lr=1e-2)


def schema(size=20, tasks=TASKS):
    label = {"kind": "numeric", "role": "label", "source_dtype": "float", "stored_dtype": "float32"}
    user = Feature(
        name="user", kind="id", role="user", source_dtype="int64", stored_dtype="int32", vocabulary_size=size
    )
    price = Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16")
    return FeatureSchema(features=(user, price, *(Feature(name=task, **label) for task in tasks)))


def chances(user, price):
    """Of each step given the one before."""
    taste = 1.5 * np.sin(user) + price
    return 1 / (1 + np.exp(-np.stack([taste, 0.8 * taste - 0.2, 0.5 * taste + 0.3], axis=1)))


def rows(count, draw):
    user, price = draw.integers(1, 20, count), draw.normal(size=count)
    step = draw.random((count, 3)) < chances(user, price)
    happened = np.logical_and.accumulate(step, axis=1)
    labels = {task: happened[:, place].astype(float) for place, task in enumerate(TASKS)}
    keys = {
        "@row": np.arange(count) + draw.integers(0, 10**6),
        "@user": user + 100,
        "@item": draw.integers(0, 9, count),
    }
    return pa.table({"user": user, "price": price, **labels, **keys})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = FeatureStore(tmp_path_factory.mktemp("tasks") / "store")
    draw = np.random.default_rng(5)
    store.write({split: rows(count, draw) for split, count in ROWS.items()}, schema=schema())
    return store


def trainer(tmp_path, **more):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    return pl.Trainer(
        **{"max_epochs": 1, "accelerator": "cpu", "devices": 1, "default_root_dir": tmp_path, **quiet, **more}
    )


def fitted(tmp_path, store, module=None, **more):
    pl.seed_everything(0, verbose=False)
    module = module or MultiTaskModule(SMALL, optimizer=FAST)
    run = trainer(tmp_path, **more)
    run.fit(module, datamodule=RankingDataModule(store=str(store.path), batch_size=200))
    return run, module


@pytest.mark.parametrize("chain", [True, False])
def test_it_learns_all_steps_and_says_how_well(tmp_path, store, chain):
    run, module = fitted(tmp_path, store, MultiTaskModule(SMALL, optimizer=FAST, chain=chain), max_epochs=6)
    data = RankingDataModule(store=str(store.path), batch_size=200)
    tested = run.test(module, datamodule=data, verbose=False)[0]
    table = store.load("test")
    users, price = table.ids[:, 0].astype(float), table.dense[:, 0].astype(np.float64)
    truth = np.cumprod(chances(users, price), axis=1)
    answers = run.predict(module, datamodule=data)
    score = torch.cat([answer["score"] for answer in answers]).double().numpy()
    assert score.shape == (1500, 3)
    for place, task in enumerate(TASKS):
        happened = table.labels[:, place] > 0
        assert tested[f"test_auc_{task}"] == pytest.approx(area(score[:, place], happened), abs=1e-5)
        assert tested[f"test_auc_{task}"] > area(truth[:, place], happened) - 0.03
        plain = -np.log(np.where(happened, score[:, place], 1 - score[:, place])).mean()
        assert tested[f"test_log_loss_{task}"] == pytest.approx(plain, rel=1e-4)
    if chain:
        assert (np.diff(score, axis=1) <= 0).all(), "no order without a cart, no cart without a click"


def area(scores, happened):
    order = np.argsort(np.argsort(scores)) + 1
    count = happened.sum()
    return (order[happened].sum() - count * (count + 1) / 2) / (count * (~happened).sum())


def test_the_loss_is_that_of_the_outcomes_in_float64(store):
    module = MultiTaskModule(MMoE(schema(), tasks=TASKS), task_weights={"order": 3.0, "cart": 0.0})
    logits, labels = torch.randn(40, 3), torch.randint(0, 2, (40, 3)).float()
    chance = torch.sigmoid(logits.double()).cumprod(dim=1)
    each = [binary_cross_entropy(chance[:, t], labels[:, t].double()) for t in range(3)]
    assert module.loss(logits, {"labels": labels}).item() == pytest.approx((each[0] + 3 * each[2]).item(), rel=1e-5)
    weight = torch.rand(40) + 0.1
    rows = [binary_cross_entropy(chance[:, t], labels[:, t].double(), reduction="none") for t in range(3)]
    wanted = ((rows[0] + 3 * rows[2]) * weight).sum() / weight.sum()
    found = module.loss(logits, {"labels": labels, "weight": weight})
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


PLUGINS = {
    "32-true": lambda: {"precision": "32-true"},
    "bf16-mixed": lambda: {"precision": "bf16-mixed"},
    "16-mixed": lambda: {
        "plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))]
    },
}


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_half_precision_trains_as_float32_does(tmp_path, store, precision):
    found = {}
    for name in ("32-true", precision):
        run, module = fitted(tmp_path, store, max_epochs=3, **PLUGINS[name]())
        assert run.callback_metrics["train_loss"].dtype == torch.float32
        found[name] = {key: float(value) for key, value in run.callback_metrics.items()}
        assert all(p.isfinite().all() for p in module.parameters())
    for key in ("val_loss", *(f"val_auc_{task}" for task in TASKS)):
        assert found[precision][key] == pytest.approx(found["32-true"][key], abs=0.03)


def test_a_checkpoint_builds_network_and_tasks(tmp_path, store):
    run, module = fitted(tmp_path, store)
    run.save_checkpoint(tmp_path / "last.ckpt")
    again = MultiTaskModule.load_from_checkpoint(tmp_path / "last.ckpt", network=SMALL, weights_only=True)
    assert again.tasks == TASKS
    batch = next(iter(RankingDataModule(store=str(store.path)).test_dataloader()))
    assert torch.equal(again(batch), module(batch))
    with pytest.raises(ConfigurationError, match=r"the checkpoint is of `.*MultiTaskModule`, and `.*RankingModule`"):
        RankingModule.load_from_checkpoint(tmp_path / "last.ckpt", network=SMALL, weights_only=True)
    other = FeatureStore(tmp_path / "other")
    other.write({s: rows(n, np.random.default_rng()) for s, n in ROWS.items()}, schema=schema(size=21))
    with pytest.raises(SchemaError, match="feature `user` differs in `vocabulary_size`: the data has 21"):
        trainer(tmp_path).test(
            MultiTaskModule(SMALL),
            datamodule=RankingDataModule(store=str(other.path)),
            ckpt_path=tmp_path / "last.ckpt",
        )


def test_its_three_override_points(tmp_path, store):
    class Halved(MultiTaskModule):
        def loss(self, logits, batch):
            return super().loss(logits, batch) / 2

        def score(self, logits):
            return logits

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    run, module = fitted(tmp_path, store, Halved(SMALL))
    assert isinstance(run.optimizers[0], torch.optim.SGD)
    total = sum(run.callback_metrics[f"val_log_loss_{task}"].item() for task in TASKS)
    assert run.callback_metrics["val_loss"].item() == pytest.approx(total / 2, rel=1e-4)
    data = RankingDataModule(store=str(store.path))
    assert run.predict(module, datamodule=data)[0]["score"].min() < 0


class OneColumn(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.schema = schema
        self.linear = nn.Linear(1, 1)

    def forward(self, batch):
        return self.linear(batch["dense"].float()).squeeze(1)


def test_mistakes_are_named(tmp_path, store):
    with pytest.raises(ConfigurationError, match=r"logits of shape \(200,\), the labels have \(200, 3\)") as caught:
        fitted(tmp_path, store, MultiTaskModule(OneColumn))
    assert caught.value.hint == "let `forward` return (B, 3): click, cart, order"
    with pytest.raises(ConfigurationError, match="`task_weights` names `buy`; the tasks are click, cart, order"):
        MultiTaskModule(SMALL, task_weights={"buy": 1.0}).build(schema())
    with pytest.raises(ConfigurationError, match=r"`task_weights\.cart` must be a number from 0 on, got -1\.0"):
        MultiTaskModule(SMALL, task_weights={"cart": -1.0})
    with pytest.raises(ConfigurationError, match="`task_weights` is 0 for every task"):
        MultiTaskModule(SMALL, task_weights=dict.fromkeys(TASKS, 0.0)).build(schema())
    swapped = partial(MMoE, tasks=["order", "cart", "click"])
    with pytest.raises(ConfigurationError, match="tasks are order, cart, click, and the labels are click, cart, order"):
        MultiTaskModule(swapped).build(schema())
    with pytest.raises(ConfigurationError, match="the schema has no label, so there is no task"):
        MultiTaskModule(SMALL).build(schema(tasks=()))
    module = MultiTaskModule(nn.Linear(1, 3))
    with pytest.raises(ConfigurationError, match="the names of the tasks are not known"):
        module.training_step({"labels": torch.zeros(2, 3)}, 0)


@pytest.mark.parametrize("value", [-0.5, 1.5, float("nan")])
def test_labels_outside_their_range_are_refused(value):
    module = MultiTaskModule(MMoE(schema(), tasks=TASKS))
    batch = {"ids": torch.ones(2, 1, dtype=torch.int64), "dense": torch.zeros(2, 1)}
    with pytest.raises(DataError, match=r"at row 1 of the batch is outside \[0, 1\], task 'click, cart, order'"):
        module.training_step({**batch, "labels": torch.tensor([[1.0, 0.0, 0.0], [0.0, value, 0.0]])}, 0)


def test_one_task_alone(tmp_path):
    store = FeatureStore(tmp_path / "store")
    draw = np.random.default_rng(1)
    parts = {s: rows(n, draw).drop_columns(["cart", "order"]) for s, n in ROWS.items()}
    store.write(parts, schema=schema(tasks=("click",)))
    run, _ = fitted(tmp_path, store, MultiTaskModule(partial(SMALL, tasks=1), optimizer=FAST))
    assert run.callback_metrics["val_auc_click"] > 0.6
