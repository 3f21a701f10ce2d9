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

from lightning_mp import (
    GradientClipping,
    KeepInFP32,
    LearningRateWarmup,
    LossFluctuationMonitor,
    LossScaleMonitor,
    NonFiniteMonitor,
    NormGuard,
    PrecisionLint,
)

BATCHES = 11
BAD = {0: {2}, 1: {5, 6}}  # batches that overflow, by rank: never both
# (fused, accumulate, Lightning clips, manual, optimizers): every legal cell
CELLS = [
    *((False, accumulate, clip, False, 1) for accumulate in (1, 3) for clip in (None, 0.5)),
    *((True, accumulate, None, False, 1) for accumulate in (1, 3)),
    *((fused, 1, None, True, optimizers) for fused in (False, True) for optimizers in (1, 2)),
]


class Oracle(pl.Callback):
    """Whether each step that was asked for changed a parameter: slow and plain."""

    def __init__(self) -> None:
        self.taken: list[bool] = []
        self.before: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Any) -> None:
        self.compare()
        own = [p for group in optimizer.param_groups for p in group["params"]]
        self.before.append((own, [p.detach().clone() for p in own]))

    def on_train_batch_end(self, *_: Any) -> None:
        self.compare()

    def compare(self) -> None:
        for now, old in self.before:
            self.taken.append(any(not torch.equal(a, b) for a, b in zip(now, old, strict=True)))
        self.before.clear()


class Module(pl.LightningModule):
    def __init__(self, *, fused: bool, manual: bool, optimizers: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.fused, self.optimizers_wanted = fused, optimizers
        self.automatic_optimization = not manual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x).float()))).float().mean()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        bad = batch_idx in BAD[self.global_rank]
        loss = self(batch[0] * (1e6 if bad else 1.0)) * (float("inf") if bad else 1.0)
        if not self.automatic_optimization:
            given = self.optimizers()
            optimizers = given if isinstance(given, list) else [given]
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in optimizers:
                optimizer.step()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", [1.0, 2.0][self.current_epoch], sync_dist=True)

    def configure_optimizers(self) -> Any:
        groups = [[*self.first.parameters(), *self.norm.parameters()], list(self.last.parameters())]
        if self.optimizers_wanted == 1:
            groups = [groups[0] + groups[1]]
        return [torch.optim.Adam(group, 1e-2, fused=self.fused) for group in groups]


def trainer(*callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=4, callbacks=list(callbacks),
        plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
        **{"max_epochs": 1, **settings},
    )  # fmt: skip


def loader(batches: int = BATCHES) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(8 * batches, 4)), batch_size=4)


def cell(fused: bool, accumulate: int, clip: float | None, manual: bool, optimizers: int, compiled: bool) -> Any:
    torch.manual_seed(0)
    monitor, oracle, keep, place = LossScaleMonitor(), Oracle(), KeepInFP32(["first"]), NonFiniteMonitor()
    warmup, clipping, guard = LearningRateWarmup(100), GradientClipping(0.5), NormGuard()
    module = Module(fused=fused, manual=manual, optimizers=optimizers)
    if compiled:
        module.forward = torch.compile(module.forward, backend="aot_eager")  # type: ignore[method-assign]  # as users do
    others = [*([] if clip else [clipping]), *([] if compiled else [keep]), warmup, place, guard, PrecisionLint()]
    run = trainer(monitor, *others, oracle, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    run.fit(module, loader())
    return {
        "accumulate": accumulate,
        "optimizers": optimizers,
        "compiled": compiled,
        "our_clip": clip is None,
        "taken": oracle.taken,
        "skipped": [[event.step, event.optimizer] for event in monitor.events],
        "origins": [event.origin for event in monitor.events],
        "scale": monitor.history.scale,
        "true_scale": run.scaler.get_scale(),
        "verified": keep.verified,
        "warmed": warmup.steps,
        "finite": clipping.steps,
        "clipped": clipping.clipped_steps,
        "finite_buffers": all(bool(buffer.isfinite().all()) for buffer in module.buffers()),
        "weights": [p.tolist() for p in module.parameters()],
    }


def fluctuation(fused: bool) -> Any:
    torch.manual_seed(0)
    monitor = LossFluctuationMonitor()
    module = Module(fused=fused, manual=False, optimizers=1)
    trainer(monitor, NormGuard(), max_epochs=2).fit(module, loader(), loader(1))
    return {
        "counts": monitor.state_dict()["counts"],
        "reports": [
            [r.epoch, r.change, [f.kind for f in r.findings if "batch" not in f.kind]] for r in monitor.reports
        ],
    }


def main(folder: Path) -> None:
    results = {
        "cells": [cell(*given, compiled) for compiled in (False, True) for given in CELLS],
        "fluctuation": [fluctuation(fused) for fused in (False, True)],
    }
    (folder / f"rank{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
