from __future__ import annotations

import copy
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import NormGuard
from lightning_mp.errors import LightningMPWarning


class Normed(pl.LightningModule):
    def __init__(self, momentum: float | None = 0.1, *, fused: bool = False, half: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=momentum), nn.ReLU(), nn.Linear(8, 6),
            nn.BatchNorm1d(6), nn.Linear(6, 1),
        )  # fmt: skip
        self.fused = fused
        self.val: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]).float().squeeze(1), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val.append(float(nn.functional.mse_loss(self.net(batch[0]).float().squeeze(1), batch[1])))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2, fused=self.fused)


def loader(bad: dict[int, float], batches: int = 8) -> DataLoader[Any]:
    x = torch.randn(batches * 16, 4)
    y = x.sum(1)
    for batch, value in bad.items():
        x[16 * batch + 3, 2] = value
    return DataLoader(TensorDataset(x, y), batch_size=16)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -70000.0])
def test_a_bad_row_leaves_no_trace_in_the_statistics(make_trainer, value, fused, momentum):
    module, data = Normed(momentum, fused=fused), loader({2: value, 5: value})
    guarded, plain = copy.deepcopy(module), copy.deepcopy(module)
    make_trainer().fit(plain, data, loader({}, 1))
    assert not all(buffer.isfinite().all() for buffer in plain.buffers())
    guard = NormGuard()
    trainer = make_trainer(callbacks=[guard])
    with pytest.warns(LightningMPWarning, match="`NormGuard` put those of the batch before back") as caught:
        trainer.fit(guarded, data, loader({}, 1))
    assert len([warning for warning in caught if warning.category is LightningMPWarning]) == 1
    assert guard.restored == 2 == trainer.callback_metrics["norm_guard/restored"]
    assert all(torch.tensor(guarded.val).isfinite())
    # The same run without the two batches: their steps were skipped, and all else went on as if they had not been.
    rows = torch.arange(128).view(8, 16)[[0, 1, 3, 4, 6, 7]].flatten()
    x, y = data.dataset.tensors
    without = copy.deepcopy(module)
    make_trainer().fit(without, DataLoader(TensorDataset(x[rows], y[rows]), batch_size=16), loader({}, 1))
    for (name, one), other in zip(guarded.state_dict().items(), without.state_dict().values(), strict=True):
        if "num_batches_tracked" not in name:
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-3)


def test_a_healthy_run_is_bit_identical(make_trainer):
    module, data, results = Normed(), loader({}), []
    for callbacks in ([], [NormGuard()]):
        fitted = copy.deepcopy(module)
        make_trainer(callbacks=callbacks, precision="bf16-mixed").fit(fitted, data, loader({}, 1))
        results.append(fitted.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_a_checkpoint_after_a_bad_batch_holds_finite_statistics(make_trainer):
    class Save(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 2:
                trainer.save_checkpoint("after.ckpt")

    with pytest.warns(LightningMPWarning, match="put those of the batch before back"):
        make_trainer(callbacks=[Save(), NormGuard()]).fit(Normed(), loader({2: float("nan")}), loader({}, 1))
    state = torch.load("after.ckpt", weights_only=True)["state_dict"]
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())


def test_a_module_without_normalisation_costs_nothing(make_trainer, toy, batches):
    guard = NormGuard()
    make_trainer(callbacks=[guard]).fit(toy(bad={1}), batches(4))
    assert guard.restored == 0
