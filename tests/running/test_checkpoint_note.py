"""A checkpoint that nothing chose: what the best one was."""

from __future__ import annotations

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_mp.running.checkpoint_note import checkpoint_note

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
]


class Course(pl.LightningModule):
    """Logs values as they are given, an epoch each."""

    def __init__(self, name, values):
        super().__init__()
        self.name, self.values, self.layer = name, values, torch.nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def validation_step(self, batch, batch_idx):
        self.log(self.name, self.values[self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def note(folder, values, *callbacks, name="val_loss", logger=None, **settings):
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=len(values), logger=CSVLogger(folder, name=None) if logger is None else logger,
        default_root_dir=folder, callbacks=list(callbacks), enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1, **settings,
    )  # fmt: skip
    rows = torch.utils.data.DataLoader(torch.randn(4, 2), batch_size=2)
    trainer.fit(Course(name, values), rows, rows)
    return checkpoint_note(trainer)


def test_an_earlier_epoch_was_better(tmp_path):
    assert note(tmp_path, [0.5, 0.25, 0.375]) == (
        "the last one, `val_loss` 0.3750; the best was 0.2500 in epoch 1: give `ModelCheckpoint` a `monitor: val_loss`"
    )
    assert note(tmp_path, [0.5, 0.25, float("nan")]).startswith("the last one, `val_loss` nan; the best was 0.2500 in")
    assert note(tmp_path, [0.2, 0.3, 0.1], name="val_ndcg") == (
        "the last one, `val_ndcg` 0.1000; the best was 0.3000 in epoch 1: "
        "give `ModelCheckpoint` a `monitor: val_ndcg`, `mode: max`"
    )


def test_nothing_is_said_where_the_last_is_the_best_or_a_metric_chose(tmp_path):
    assert note(tmp_path, [0.5, 0.25]) is None
    assert note(tmp_path, [float("nan")] * 2) is None
    assert note(tmp_path, [0.25, 0.5], ModelCheckpoint(monitor="val_loss")) is None
    assert note(tmp_path, [0.25, 0.5], enable_checkpointing=False) is None
    assert note(tmp_path, [0.25, 0.5], name="of_my_own") is None


def test_without_a_file_to_read_it_says_that_nothing_chose(tmp_path):
    expected = "the last one, whatever `val_loss` was before: give `ModelCheckpoint` a `monitor: val_loss`"
    assert note(tmp_path, [0.25, 0.5], logger=False) == expected
