"""Every callback on modules that freeze layers inside the training step, as a GAN does."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import (
    GradientUnderflowMonitor,
    KeepInFP32,
    LossScaleMonitor,
    NonFiniteMonitor,
    NormGuard,
    mixed_precision,
)
from lightning_mp.precision.float32_layers import Float32Layers
from lightning_mp.precision.gradient_format import GradientFormat

pytestmark = pytest.mark.filterwarnings("ignore:.*emulates float16:lightning_mp.errors.LightningMPWarning")
PRECISIONS = ["16-mixed", "bf16-mixed"]


class GAN(pl.LightningModule):
    """Two optimizers, each with only its own network trained, by `toggle_optimizer`."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.Linear(8, 1))

    def judged(self, rows: torch.Tensor, *, real: bool) -> torch.Tensor:
        logits = self.discriminator(rows).float()
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        (real,), noise = batch, torch.randn(len(batch[0]), 4)
        for number, optimizer in enumerate(optimizers):
            self.toggle_optimizer(optimizer)
            fake = self.generator(noise)
            loss = (
                self.judged(fake, real=True)
                if number == 0
                else (self.judged(real, real=True) + self.judged(fake.detach(), real=False)) / 2
            )
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(net.parameters(), 1e-2) for net in (self.generator, self.discriminator)]


class Flips(pl.LightningModule):
    """The first layer is trained in every other batch."""

    def __init__(self, since: int = 0) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.since = since

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.net[0].weight.requires_grad_(batch_idx >= self.since and batch_idx % 2 == 0)
        return self.net(batch[0]).float().square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)


def fit(module: pl.LightningModule, precision: Any, *callbacks: pl.Callback, batches: int = 6) -> None:
    pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[mixed_precision(precision, "cpu")],
        callbacks=list(callbacks),
    ).fit(module, DataLoader(TensorDataset(torch.randn(16 * batches, 4)), batch_size=16))


def all_of_them(keep: KeepInFP32) -> list[pl.Callback]:
    underflow = GradientUnderflowMonitor(every_n_steps=1, probe_every_n_steps=1)
    return [keep, LossScaleMonitor(), underflow, NonFiniteMonitor(), NormGuard()]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("named", [False, True], ids=["auto", "named"])
def test_a_gan_that_toggles_its_optimizers_trains_and_both_networks_are_verified(precision, named):
    edges = {f"{net}.{layer}" for net, layers in (("generator", "04"), ("discriminator", "03")) for layer in layers}
    keep, module = KeepInFP32(sorted(edges)) if named else KeepInFP32(), GAN()
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    fit(module, precision, *all_of_them(keep))
    found = edges if named else edges - {"generator.4"}  # wherever it is trained it feeds the discriminator
    assert set(keep.layers) == found
    assert keep.verified == dict.fromkeys(found, True)
    assert all(weight.requires_grad for weight in module.parameters())
    assert not any(torch.equal(before[name], weight) for name, weight in module.named_parameters() if "weight" in name)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("since", [0, 30], ids=["at once", "after 30 batches"])
def test_a_layer_that_is_frozen_now_and_then_is_verified_when_it_is_trained(precision, since):
    keep = KeepInFP32(["net.0", "net.4"])
    fit(Flips(since), precision, *all_of_them(keep), batches=since + 5)
    assert keep.verified == {"net.0": True, "net.4": True}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_layer_that_is_not_in_float32_is_still_caught_after_a_pass_in_which_it_was_frozen(dtype):
    kept, short = nn.Linear(64, 64), nn.Linear(64, 64)
    layers = Float32Layers({"kept": kept})
    check = GradientFormat({"kept": kept, "short": short}, dtype)
    verdicts = []
    for frozen in (True, False):
        short.weight.requires_grad_(not frozen)
        with torch.autocast("cpu", dtype=dtype):
            loss = short(kept(torch.randn(16, 64))).float().square().mean()
        check.attach(verdicts[0] if verdicts else ())
        assert check.is_attached
        loss.backward()
        check.detach()
        verdicts.append(check.verdict())
    layers.release()
    assert verdicts == [{"kept": True}, {"kept": True, "short": False}]
    short.weight.requires_grad_(False)
    check.attach({"kept"})
    assert not check.is_attached
