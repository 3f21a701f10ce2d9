"""Layers kept under DDP where one process alone sees large numbers: run by a test with a FOLDER; each rank writes."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import KeepInFP32, LossScaleMonitor


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1))
        self.example_input_array = torch.randn(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        large = self.global_rank == 1 and batch_idx >= 12
        return self.net(batch[0] * (1e6 if large else 1.0)).float().mean() * 1e-6

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-3)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    keep, monitor, module = KeepInFP32(), LossScaleMonitor(), Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[keep, monitor],
        plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(2 * 4 * 30, 4)), batch_size=4))
    result = {
        "layers": keep.layers,
        "near_overflow": sorted(keep.near_overflow),
        "measured": keep.state_dict()["measured"],
        "skipped": monitor.history.skipped,
        "weights": [p.tolist() for p in module.parameters()],
    }
    (folder / f"rank{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
