"""What ended a fit ahead of its limits, with the real Trainer and scaler."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import LossScaleMonitor
from lightning_mp.errors import LightningMPWarning
from lightning_mp.running.why_it_stopped import why_it_stopped

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*"),
]


class Overflows(pl.LightningModule):
    """Each step overflows where it is asked to; the loss that is logged is given."""

    def __init__(self, *, bad: bool = False, loss: float = 0.5):
        super().__init__()
        self.layer, self.bad, self.loss = torch.nn.Linear(2, 1), bad, loss

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0] * (1e6 if self.bad else 1.0)).float().square().mean()

    def on_train_epoch_end(self):
        self.log("seen", self.loss)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


class Stops(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = batch_idx == 1


def told(*callbacks, **settings):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=4, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, plugins=[MixedPrecision("16-mixed", "cpu", scaler)], callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(Overflows(**settings), DataLoader(TensorDataset(torch.randn(16, 2)), batch_size=2))
    return why_it_stopped(trainer, trainer.callbacks)


def test_a_loss_scale_that_collapsed_is_named():
    with pytest.warns(LightningMPWarning, match="3 optimizer steps in a row"):
        (line,) = told(LossScaleMonitor(patience=3, on_collapse="stop"), bad=True)
    assert line.startswith("stopped:    after 3 steps: 3 optimizer steps in a row were skipped; the loss scale is ")
    assert "began in the forward pass" in line
    assert line.endswith(" (`LossScaleMonitor`)")


def test_one_that_only_warns_or_never_collapsed_is_not():
    with pytest.warns(LightningMPWarning, match="3 optimizer steps in a row"):
        assert told(LossScaleMonitor(patience=3), bad=True) == []
    assert told(LossScaleMonitor(on_collapse="stop")) == []


def test_early_stopping_tells_its_reason_whichever_it_was():
    patience = told(EarlyStopping("seen", patience=2))
    assert patience == ["stopped:    after epoch 2: `seen` was no better in 2 validations than 0.5 (`EarlyStopping`)"]
    (line,) = told(EarlyStopping("seen", patience=2, stopping_threshold=0.6))
    assert line.startswith("stopped:    after epoch 0: Stopping threshold reached: seen = 0.5")
    assert "Signaling" not in line
    (line,) = told(EarlyStopping("seen"), loss=float("nan"))
    assert "after epoch 0: Monitored metric seen = nan is not finite" in line


def test_what_has_no_name_is_told_too():
    assert told(Stops(), LossScaleMonitor(on_collapse="stop")) == [
        "stopped:    after step 2: a callback, or the module, set `trainer.should_stop`"
    ]
