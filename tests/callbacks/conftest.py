"""Tiny trainings in float16 on the CPU, with the real Trainer, scaler and plugin."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Toy(pl.LightningModule):
    """Three linear layers; overflows on request in the forward pass (`bad`) or in the backward pass (`steep`)."""

    def __init__(
        self,
        *,
        fused: bool = False,
        optimizers: int = 1,
        manual: bool = False,
        bad: Collection[int] = (),
        steep: Collection[int] = (),
        none: Collection[int] = (),
    ) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.fused, self.optimizers_wanted = fused, optimizers
        self.automatic_optimization = not manual
        self.bad, self.steep, self.none = set(bad), set(steep), set(none)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x))))).squeeze(-1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        x, y = batch
        if batch_idx in self.bad:
            x = x * 1e6
        loss = nn.functional.mse_loss(self(x).float(), y)
        if batch_idx in self.steep:
            loss = loss * 1e9
        if batch_idx in self.none:
            return None
        if self.automatic_optimization:
            return loss
        optimizers = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        groups = [list(self.first.parameters()) + list(self.middle.parameters()), list(self.last.parameters())]
        if self.optimizers_wanted == 1:
            groups = [groups[0] + groups[1]]
        return [torch.optim.Adam(group, 1e-2, fused=self.fused) for group in groups]


@pytest.fixture
def toy() -> type[Toy]:
    """The class of the tiny module."""
    return Toy


@pytest.fixture
def make_trainer() -> Callable[..., pl.Trainer]:
    """A quiet CPU Trainer in float16 with a real scaler, or in another precision."""

    def build(*, scale: float = 1024.0, scaler: Any = None, **settings: Any) -> pl.Trainer:
        if "precision" not in settings:
            settings["plugins"] = [
                MixedPrecision("16-mixed", "cpu", scaler or torch.amp.GradScaler("cpu", init_scale=scale))
            ]
        quiet: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 1,
        }
        return pl.Trainer(**{**quiet, **settings})

    return build


@pytest.fixture
def batches() -> Callable[..., DataLoader[Any]]:
    """`count` batches of four fresh random rows."""

    def build(count: int = 12, rows: int = 4) -> DataLoader[Any]:
        x = torch.randn(count * rows, 4)
        return DataLoader(TensorDataset(x, x.sum(1)), batch_size=rows)

    return build
