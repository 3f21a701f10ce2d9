from __future__ import annotations

import weakref
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import LossScaleMonitor, NonFiniteMonitor
from lightning_mp.errors import LightningMPWarning


def fit(
    make_trainer: Any, module: pl.LightningModule, loader: Any, match: str | None, **settings: Any
) -> NonFiniteMonitor:
    monitor = NonFiniteMonitor()
    trainer = make_trainer(callbacks=[monitor], **settings)
    if match is None:  # a warning would be an error
        trainer.fit(module, loader)
        assert trainer.callback_metrics["non_finite/batches"] == len(monitor.events)
        return monitor
    with pytest.warns(LightningMPWarning, match=match) as caught:
        trainer.fit(module, loader)
    assert len([warning for warning in caught if warning.category is LightningMPWarning]) == 1
    assert trainer.callback_metrics["non_finite/batches"] == len(monitor.events)
    return monitor


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_and_columns_of_a_bad_batch_are_named(make_trainer, toy, batches, value, fused):
    loader = batches(6)
    rows, columns = torch.randperm(4)[:2].sort().values.tolist(), torch.randperm(4)[:2].tolist()
    for row, column in zip(rows, columns, strict=True):
        loader.dataset.tensors[0][4 * 3 + row, column] = value
    monitor = fit(make_trainer, toy(fused=fused), loader, r"in the forward pass of batch 3 \(step 3\): `batch\[0\]`")
    (event,) = monitor.events
    assert (event.step, event.batch, event.origin, event.module, event.tensor) == (3, 3, "forward", "", "batch[0]")
    assert (event.kind, event.count) == ("nan" if value != value else "inf", 2)
    assert (list(event.rows), list(event.columns)) == (rows, sorted(columns))


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_gives_no_loss_is_no_event_and_keeps_nothing(make_trainer, batches, first):
    class Some(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 1))
            self.given: list[Any] = []

        def training_step(self, batch, batch_idx):
            given = batch[0] * 1.0
            self.given.append(weakref.ref(given))
            loss = self.net(given * (1e9 if batch_idx == 5 else 1.0)).float().mean()
            return None if batch_idx in {1, 2, 3, 4} else loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Alive(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            assert pl_module.given[-1]() is None

    monitor, scale = NonFiniteMonitor(), LossScaleMonitor()
    callbacks = [monitor, scale, Alive()] if first else [scale, monitor, Alive()]
    with pytest.warns(LightningMPWarning, match=r"`net\.0`, `output`"):
        make_trainer(callbacks=callbacks).fit(Some(), batches(8))
    assert [(event.batch, event.module) for event in monitor.events] == [(5, "net.0")]
    assert [event.layers for event in scale.events] == [("net.0",)]


@pytest.mark.parametrize("layer", ["0", "2"])
def test_the_layer_rows_and_columns_of_a_forward_overflow_are_named(make_trainer, batches, layer):
    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 5), nn.Flatten(), nn.Linear(5, 1))
            self.net[0].weight.data.abs_()
            self.net[0].bias.data.fill_(1.0)

        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                self.net.get_submodule(layer).weight.data[3] = 5e4
                self.net.get_submodule(layer).bias.data[3] = 6e4
            return self.net(batch[0].abs() + 1).float().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    (event, *_) = fit(make_trainer, Net(), batches(4), rf"`net.{layer}`, `output`, rows 0, 1, 2, 3, columns 3").events
    assert (event.batch, event.origin, event.module, event.tensor) == (2, "forward", f"net.{layer}", "output")
    assert (event.kind, event.rows, event.columns) == ("inf", (0, 1, 2, 3), (3,))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_backward_overflow_is_named_at_the_layer_nearest_to_the_loss(make_trainer, toy, batches, fused, accumulate):
    module = toy(fused=fused, steep={4})
    monitor = fit(make_trainer, module, batches(6), None, accumulate_grad_batches=accumulate)
    (event,) = monitor.events
    assert (event.tensor in {"weight.grad", "bias.grad"}, event.rows) == (True, (0,))
    assert (event.step, event.origin, event.module) == (4 // accumulate, "backward", "last")
    assert event.batch == (4 if accumulate == 1 else 5)


def test_a_nan_that_clipping_has_spread_is_not_taken_for_the_cause(make_trainer, toy, batches):
    class OneBadLayer(toy):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                self.middle.weight.register_hook(lambda gradient: gradient * float("nan"))
            return super().training_step(batch, batch_idx)

    monitor = fit(make_trainer, OneBadLayer(), batches(3), None, gradient_clip_val=0.5)
    assert (monitor.events[0].module, monitor.events[0].tensor) == ("", "")


def test_without_a_scaler_a_bad_gradient_is_found_in_the_weights(make_trainer, toy, batches):
    class OneBadLayer(toy):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                self.middle.bias.register_hook(lambda gradient: gradient * float("inf"))
            return super().training_step(batch, batch_idx)

    monitor = fit(make_trainer, OneBadLayer(), batches(5), "`middle`, `bias`, rows", precision="32-true")
    event = monitor.events[0]
    assert (event.batch, event.step, event.origin, event.module) == (2, 3, "backward", "middle")


def test_sparse_rows_are_those_of_the_table(make_trainer):
    class Table(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.table, self.last = nn.Embedding(50, 4, sparse=True), nn.Linear(4, 1)

        def training_step(self, batch, batch_idx):
            x = self.table(batch[0])
            if batch_idx == 1:
                x.register_hook(lambda gradient: gradient * float("inf"))
            return self.last(x).float().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = DataLoader(TensorDataset(torch.tensor([1, 2, 3, 7, 41, 7, 4, 5, 6])), batch_size=3)
    (event,) = fit(make_trainer, Table(), loader, None).events
    assert (
        str(event)
        == "inf in the backward pass of batch 1 (step 1): `table`, `weight.grad`, rows 7, 41, columns 0, 1, 2, 3"
    )
    assert (event.batch, event.rows) == (1, (7, 41))


def test_a_healthy_run_says_nothing(make_trainer, toy, batches):
    monitor = NonFiniteMonitor()
    trainer = make_trainer(callbacks=[monitor])
    trainer.fit(toy(), batches(4))
    assert trainer.callback_metrics["non_finite/batches"] == 0
    assert not monitor.events
