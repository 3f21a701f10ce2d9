"""Monitors under DDP, one process unlike the other: run by a test with a FOLDER and a CASE; each rank writes."""

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
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import (
    GradientUnderflowMonitor,
    KeepInFP32,
    LossFluctuationMonitor,
    LossScaleMonitor,
    NonFiniteMonitor,
    NormGuard,
    PrecisionReport,
)


class FailsFirst(torch.autograd.Function):
    """Its very first backward pass, which is the probe's, fails in the second process."""

    failed = False

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: int) -> Tensor:
        ctx.rank = rank
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.rank == 1 and not FailsFirst.failed:
            FailsFirst.failed = True
            raise RuntimeError("a probe is not possible here")
        return gradient, None


class Module(pl.LightningModule):
    def __init__(self, case: str) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.case = case

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        large = self.case == "overflow" and self.global_rank == 1 and batch_idx in (0, 1, 2, 5, 11, 12)
        hidden = torch.relu(self.first(batch[0])) * (1e6 if large else 1.0)
        if self.case == "refusal":
            hidden = FailsFirst.apply(hidden, self.global_rank)
        tiny = 1e-7 if self.case == "tiny" and self.global_rank == 1 else 1.0
        return self.last(self.norm(hidden)).float().mean() * tiny

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-3)


def main(folder: Path, case: str) -> None:
    torch.manual_seed(0)
    underflow = GradientUnderflowMonitor(every_n_steps=1, probe_every_n_steps=2)
    scale, module = LossScaleMonitor(), Module(case)
    callbacks = [
        KeepInFP32(), scale, NonFiniteMonitor(), NormGuard(), underflow, LossFluctuationMonitor(),
        PrecisionReport(folder / "report"),
    ]  # fmt: skip
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks, log_every_n_steps=2,
        plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(2 * 4 * 16, 4)), batch_size=4))
    result = {
        "skipped": scale.history.skipped,
        "probed": underflow.report is not None,
        "weights": [p.tolist() for p in module.parameters()],
    }
    (folder / f"rank{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2])
