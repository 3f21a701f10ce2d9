"""What `KeepInFP32(modules="auto")` finds in the networks, and that it holds."""

from __future__ import annotations

from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, Dataset

from lightning_mp.callbacks.keep_in_fp32 import KeepInFP32
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.networks.deep_fm import DeepFM
from lightning_mp.networks.mmoe import MMoE
from lightning_mp.networks.sasrec import SASRec
from lightning_mp.networks.tabm import TabM
from lightning_mp.networks.two_tower import TwoTower
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad

NETWORKS = {
    "DeepFM": (DeepFM, {"deep.layers.0"}, {"head"}),
    "DCNv2": (DCNv2, {"cross.layers.0.up", "deep.layers.0"}, {"head"}),
    "DCNv2, low rank": (partial(DCNv2, rank=4), {"cross.layers.0.down", "deep.layers.0"}, {"head"}),
    "TabM": (partial(TabM, members=3), {"layers.0"}, {"heads"}),
    "TwoTower": (TwoTower, {"user.deep.layers.0", "item.deep.layers.0"}, {"user.out", "item.out"}),
    "MMoE": (
        partial(MMoE, tasks=2, experts=2),
        {"experts.0.layers.0", "experts.1.layers.0", "gates.0", "gates.1"},
        {"heads.0", "heads.1"},
    ),
    "SASRec": (
        partial(SASRec, max_length=6, dropout=0.0),
        {f"blocks.0.attention.{part}" for part in ("query", "key", "value")},
        {"blocks.1.down"},
    ),
}


class Plain(pl.LightningModule):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def training_step(self, batch, batch_idx):
        return (self.network(batch) - 0.3).square().mean()

    def configure_optimizers(self):
        return RowWiseAdagrad(self.parameters(), lr=0.01)


class Batches(Dataset):
    def __init__(self, mixed):
        self.batches = [
            {**mixed.batch(64), "history": torch.randint(0, 300, (64, 6)), "target": torch.randint(1, 300, (64,))}
            for _ in range(3)
        ]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


@pytest.mark.parametrize("name", NETWORKS)
def test_auto_finds_input_and_output_layers_and_keeps_them(mixed, name):
    network, first, last = NETWORKS[name]
    keep = KeepInFP32()
    module = Plain(mixed.trained_like(network(mixed.schema)))
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[keep],
        plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
    )  # fmt: skip
    trainer.fit(module, DataLoader(Batches(mixed), batch_size=None))
    assert set(keep.layers) == {f"network.{layer}" for layer in first | last}
    assert keep.verified == dict.fromkeys(keep.layers, True)
