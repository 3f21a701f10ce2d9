"""Two processes and one page: run by a test, as `python report_of_two_processes.py FOLDER`."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import PrecisionReport

BAD = {0: {2}, 1: {5}}  # batches that overflow, by rank


class Module(pl.LightningModule):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.fused = fused

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        bad = batch_idx in BAD[self.global_rank]
        loss = self.last(torch.tanh(self.first(batch[0]))).float().square().mean()
        return loss * (float("inf") if bad else 1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2, fused=self.fused)


def main(folder: Path) -> None:
    paths = []
    for kind in ("plain", "fused"):
        torch.manual_seed(0)
        report = PrecisionReport(folder / kind)
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False, max_epochs=1,
            enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=4, callbacks=[report],
            plugins=[MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))],
        )  # fmt: skip
        trainer.fit(Module(fused=kind == "fused"), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4))
        paths.append(str(report.path))
    if trainer.global_rank == 1:
        (folder / "rank1").write_text(" ".join(paths))
    trainer.strategy.barrier()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
