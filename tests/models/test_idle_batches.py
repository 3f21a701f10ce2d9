"""Batches without anything to learn from: a loss of 0, a run that goes on, and one warning."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import RankingDataModule
from lightning_mp.errors import DataError, LightningMPWarning
from lightning_mp.models.idle_batches import IdleBatches
from lightning_mp.models.next_item import NextItemModule
from lightning_mp.models.retrieval import RetrievalModule
from lightning_mp.networks.sasrec import SASRec
from lightning_mp.networks.two_tower import TwoTower
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad
from lightning_mp.schema import Feature, FeatureSchema

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers", "ignore:You defined a `validation_step` but have no `val_dataloader`"
)
INDEXED = {"source_dtype": "int64", "stored_dtype": "int32"}
USER = Feature(name="user", kind="id", role="user", vocabulary_size=9, **INDEXED)
ITEM = Feature(name="item", kind="id", role="item", vocabulary_size=9, **INDEXED)
BEFORE = Feature(name="before", kind="sequence", role="user", width=4, vocabulary_size=9, **INDEXED)
LABEL = Feature(name="taken", kind="numeric", role="label", source_dtype="float", stored_dtype="float32")


def modules():
    next_item = NextItemModule(
        partial(SASRec, max_length=4, embedding_dim=8, blocks=1, dropout=0.0),
        objective="softmax",
        optimizer=torch.optim.SGD,
    )
    towers = RetrievalModule(partial(TwoTower, embedding_dim=8, hidden=(), output_dim=8), optimizer=torch.optim.SGD)
    next_item.build(FeatureSchema(features=(ITEM, BEFORE, LABEL)))
    towers.build(FeatureSchema(features=(USER, ITEM, LABEL)))
    return [next_item, towers]


def batch(module, *, taken, items=None):
    rows = len(taken)
    items = torch.randint(1, 9, (rows,)) if items is None else torch.tensor(items)
    labels = {"labels": torch.tensor(taken)}
    if isinstance(module, NextItemModule):
        return {"ids": items[:, None], "history": torch.randint(1, 9, (rows, 4)), **labels}
    return {"ids": torch.stack([torch.randint(1, 9, (rows,)), items], dim=1), **labels}


def fit(tmp_path, module, batches, **more):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=1, default_root_dir=tmp_path, **quiet, **more)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LightningMPWarning)
        trainer.fit(module, DataLoader(batches, batch_size=None))
    return trainer, [str(w.message) for w in caught if issubclass(w.category, LightningMPWarning)]


def plugin(precision):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if precision == "16-mixed" else None
    return [] if precision == "32-true" else [MixedPrecision(precision, "cpu", scaler)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("place", [0, 1], ids=["next item", "retrieval"])
def test_a_run_goes_on_and_says_once_what_it_passed_over(tmp_path, place, precision):
    module = modules()[place]
    batches = [batch(module, taken=t) for t in ([1.0] * 4, [0.0] * 3, [1.0] * 2, [0.0, 0.0])]
    alone = copy.deepcopy(module)
    trainer, said = fit(tmp_path, module, batches, plugins=plugin(precision))
    assert trainer.global_step == 8
    assert len(said) == 1
    assert said[0].startswith(
        "2 training batches (5 rows) had nothing to learn from: their loss is 0\n\nhint: lower `min"
    )
    fit(tmp_path, alone, [batches[0], batches[2]], plugins=plugin(precision))
    for ours, theirs in zip(module.network.parameters(), alone.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_rows_of_unknown_items_are_left_out_and_counted(tmp_path):
    module = modules()[0]
    batches = [batch(module, taken=[1.0] * 3, items=[0, 5, 6]), batch(module, taken=[1.0] * 2, items=[0, 0])]
    _, said = fit(tmp_path, module, batches)
    assert len(said) == 1
    assert "1 training batches (2 rows) had nothing to learn from: their loss is 0; 1 rows of other training" in said[0]


@pytest.mark.parametrize("place", [0, 1], ids=["next item", "retrieval"])
def test_a_run_that_learns_from_nothing_at_all_is_refused(tmp_path, place):
    module = modules()[place]
    with pytest.raises(DataError, match="none of the 2 training batches has a row of a known item that was taken"):
        fit(tmp_path, module, [batch(module, taken=[0.0] * 3), batch(module, taken=[0.0] * 2)])


def test_the_loss_is_a_zero_that_every_parameter_takes_part_in():
    for module in modules():
        with torch.no_grad():
            next(module.network.parameters()).fill_(float("inf"))
        loss = module.training_step(batch(module, taken=[0.0] * 3), 0)
        assert (loss.item(), loss.dtype) == (0.0, torch.float32)
        loss.backward()
        assert all(p.grad is not None and not p.grad.any() for p in module.network.parameters())


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, RowWiseAdagrad])
def test_optimizers_of_sparse_gradients_take_it(optimizer):
    table = nn.Embedding(7, 3, sparse=True)
    before = table.weight.detach().clone()
    steps = optimizer(table.parameters(), lr=0.1)
    IdleBatches().loss(table, {"ids": torch.zeros(2, 1)}).backward()
    assert table.weight.grad.is_sparse
    steps.step()
    assert torch.equal(table.weight, before)


def test_a_single_taken_row_among_others_is_passed_over_unless_earlier_items_are_kept():
    towers = modules()[1]
    one = batch(towers, taken=[0.0, 1.0, 0.0])
    assert towers.training_step(one, 0).item() == 0.0
    with pytest.raises(DataError, match="the batch has one row, and the other rows are its negatives"):
        towers.training_step(batch(towers, taken=[1.0]), 0)


def test_an_evaluation_without_a_taken_row_is_undefined_and_says_so(tmp_path):
    rows = np.arange(40)
    keys = {"@user": rows % 8, "@item": rows % 8, "@time": rows, "@row": rows}
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(160, dtype=np.int32)), 4)
    for place, module in enumerate(modules()):
        schema = module.schema
        columns = {"item": rows % 8 + 1, **({"before": lists} if place == 0 else {"user": rows % 8 + 1})}
        table = pa.table({**columns, "taken": (rows < 20).astype(float), **keys})
        store = FeatureStore(tmp_path / f"store{place}")
        parts = {"train": table.slice(0, 20), "validation": table.slice(20, 10), "test": table.slice(30)}
        store.write(parts, schema=schema, users=pa.array(range(8)), items=pa.array(range(8)))
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", devices=1, default_root_dir=tmp_path, **quiet)
        module.exclude_seen = False
        with pytest.warns(
            LightningMPWarning, match="`test_ndcg`, `test_recall` and `test_mrr` are undefined"
        ) as caught:
            found = trainer.test(module, RankingDataModule(store=str(store.path), batch_size=5), verbose=False)[0]
        assert len([w for w in caught if issubclass(w.category, LightningMPWarning)]) == 1
        assert np.isnan(found["test_ndcg"])
