"""Skips counted under DDP: run by a test, as `python two_processes.py FOLDER`; each rank writes what it saw."""

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

from lightning_mp import GradientClipping, KeepInFP32, LearningRateWarmup, LossScaleMonitor

BAD = {0: {2}, 1: {5, 6}}  # batches that overflow, by rank: never both


class Module(pl.LightningModule):
    def __init__(self, *, fused: bool, manual: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.fused = fused
        self.automatic_optimization = not manual
        self.taken: list[bool] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = batch[0] * (1e6 if batch_idx in BAD[self.global_rank] else 1.0)
        before = [p.detach().clone() for p in self.parameters()]
        loss = self.last(torch.tanh(self.first(x))).float().mean()
        if batch_idx in BAD[self.global_rank]:
            loss = loss * float("inf")
        if not self.automatic_optimization:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            self.taken.append(any(not torch.equal(a, b) for a, b in zip(before, self.parameters(), strict=True)))
        else:
            self.before = before
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.automatic_optimization:
            self.taken.append(any(not torch.equal(a, b) for a, b in zip(self.before, self.parameters(), strict=True)))

    def configure_optimizers(self) -> Any:
        groups = [list(self.parameters())] if self.automatic_optimization else [
            list(self.first.parameters()), list(self.last.parameters())
        ]  # fmt: skip
        return [torch.optim.Adam(group, 1e-2, fused=self.fused) for group in groups]


def main(folder: Path) -> None:
    results = []
    for fused, manual in ((False, False), (True, False), (False, True)):
        torch.manual_seed(0)
        monitor, keep = LossScaleMonitor(), KeepInFP32(["first"])
        warmup, clipping = LearningRateWarmup(100), GradientClipping(0.5)
        module = Module(fused=fused, manual=manual)
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=4,
            callbacks=[monitor, keep, warmup, clipping],
            plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
        )  # fmt: skip
        trainer.fit(module, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))
        results.append({
            "taken": module.taken,
            "skipped": [[event.step, event.optimizer] for event in monitor.events],
            "origins": [event.origin for event in monitor.events],
            "scale": monitor.history.scale,
            "true_scale": trainer.scaler.get_scale(),
            "verified": keep.verified,
            "warmed": warmup.steps,
            "finite": clipping.steps,
            "clipped": clipping.clipped_steps,
            "weights": [p.tolist() for p in module.parameters()],
        })  # fmt: skip
    (folder / f"rank{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
