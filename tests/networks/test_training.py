"""Every network with every optimizer that its tables can have, and with all callbacks at once."""

from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset

from lightning_mp.callbacks.gradient_clipping import GradientClipping
from lightning_mp.callbacks.gradient_underflow_monitor import GradientUnderflowMonitor
from lightning_mp.callbacks.keep_in_fp32 import KeepInFP32
from lightning_mp.callbacks.learning_rate_warmup import LearningRateWarmup
from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor
from lightning_mp.callbacks.non_finite_monitor import NonFiniteMonitor
from lightning_mp.callbacks.norm_guard import NormGuard
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.networks.deep_fm import DeepFM
from lightning_mp.networks.mmoe import MMoE
from lightning_mp.networks.sasrec import SASRec
from lightning_mp.networks.tabm import TabM
from lightning_mp.networks.two_tower import TwoTower
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad

NETWORKS = {
    "DCNv2": partial(DCNv2, rank=4),
    "DeepFM": DeepFM,
    "MMoE": partial(MMoE, tasks=2, experts=2),
    "SASRec": partial(SASRec, max_length=6, embedding_dim=16),
    "TabM": partial(TabM, members=3),
    "TwoTower": TwoTower,
}


def batch_of(mixed, rows=64):
    return {
        **mixed.batch(rows),
        "history": torch.randint(0, 300, (rows, 6)),
        "target": torch.randint(1, 300, (rows,)),
        "labels": torch.randint(0, 2, (rows,)).float(),
    }


def loss_of(network, batch):
    logits = network(batch)
    return binary_cross_entropy_with_logits(
        logits, batch["labels"].view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
    )


def tables(network):
    """Those whose gradients are sparse: parameters of a sparse `nn.Embedding`."""
    return [part.weight for part in network.modules() if isinstance(part, nn.Embedding) and part.sparse]


def adam(network):
    return [torch.optim.Adam(network.parameters(), lr=1e-2, fused=True)]


def sparse_adam(network):
    own = {id(table) for table in tables(network)}
    rest = [parameter for parameter in network.parameters() if id(parameter) not in own]
    return [torch.optim.SparseAdam(tables(network), lr=1e-2), torch.optim.Adam(rest, lr=1e-2, fused=True)]


def row_wise(network):
    return [RowWiseAdagrad(network.parameters(), lr=5e-2)]


@pytest.mark.parametrize(("make", "sparse"), [(adam, False), (sparse_adam, True), (row_wise, True), (row_wise, False)])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_learns_a_batch_by_heart_under_a_scaler(mixed, name, make, sparse):
    torch.manual_seed(0)
    network = NETWORKS[name](mixed.schema, sparse=sparse)
    assert bool(tables(network)) == sparse
    optimizers, scaler = make(network), torch.amp.GradScaler("cpu", init_scale=1024.0)
    batch, losses = batch_of(mixed), []
    for _ in range(60):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(network, batch)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    assert all(parameter.isfinite().all() for parameter in network.parameters())
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]
    if name == "SASRec":
        assert not network.items.weight[0].any()


class Plain(pl.LightningModule):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def training_step(self, batch, batch_idx):
        return loss_of(self.network, batch)

    def configure_optimizers(self):
        return RowWiseAdagrad(self.parameters(), lr=0.01)


class Batches(Dataset):
    def __init__(self, mixed, count):
        self.batches = [batch_of(mixed) for _ in range(count)]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.parametrize("name", ["DeepFM", "SASRec", "TwoTower"])
def test_sparse_tables_train_in_float16_with_all_callbacks(mixed, name, tmp_path):
    callbacks = [
        LossScaleMonitor(),
        GradientUnderflowMonitor(every_n_steps=2, probe_every_n_steps=4),
        KeepInFP32(),
        LearningRateWarmup(warmup_steps=3),
        NonFiniteMonitor(),
        NormGuard(),
        GradientClipping(max_norm=1.0),
    ]
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=CSVLogger(tmp_path), enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, callbacks=callbacks,
        plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
    )  # fmt: skip
    module = Plain(NETWORKS[name](mixed.schema, sparse=True))
    trainer.fit(module, DataLoader(Batches(mixed, 8), batch_size=None))
    logged = trainer.logged_metrics
    assert logged["loss_scale/skipped_steps"] == 0
    assert logged["underflow/lost_norm"] < 0.05
    assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_compiled_it_answers_and_learns_the_same(mixed, name):
    torch._dynamo.reset()
    network = NETWORKS[name](mixed.schema).eval()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    batch = batch_of(mixed)
    torch.testing.assert_close(compiled(batch), network(batch))
    compiled(batch).sum().backward()
    gradients = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    network(batch).sum().backward()
    for mine, plain in zip(gradients, (p.grad for p in network.parameters() if p.grad is not None), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)
