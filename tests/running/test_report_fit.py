"""The last lines of a fit: why it stopped, where its checkpoint is, and how to come by a bundle."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_mp import DCNv2, FeatureSchema, FeatureStore, OnnxExport, RankingDataModule, RankingModule
from lightning_mp.cli.main import main
from lightning_mp.running.report import report_fit
from lightning_mp.schema import Feature


def fit(*callbacks: pl.Callback, epochs: int, monitor: str | None = "val_loss", worse: bool = False) -> list[str]:
    draw = np.random.default_rng()
    values = {"a": draw.normal(size=600).astype(np.float32), "click": (draw.random(600) < 0.5).astype(np.float32)}
    parts = {
        part: pa.table({name: column[rows] for name, column in values.items()})
        for part, rows in (("train", slice(300)), ("validation", slice(300, 400)), ("test", slice(400, None)))
    }
    label = Feature(name="click", kind="numeric", role="label", source_dtype="float", stored_dtype="float32",
                    missing="refuse")  # fmt: skip
    number = Feature(name="a", kind="numeric", role="context", source_dtype="float", stored_dtype="float32")
    FeatureStore("store").write(parts, schema=FeatureSchema(features=(number, label)))
    data = RankingDataModule(store="store", batch_size=100)
    module = RankingModule(
        partial(DCNv2, hidden=(8,)), optimizer=partial(torch.optim.SGD, lr=0.5 * worse, maximize=worse)
    )
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=CSVLogger("."), enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1,
        callbacks=[*callbacks, ModelCheckpoint("kept", monitor=monitor)],
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    report_fit(trainer, module, data)
    return ["checkpoint", str(trainer.checkpoint_callback.best_model_path)]


def test_early_stopping_says_why(capsys):
    fit(EarlyStopping("val_loss", patience=2), epochs=9)
    printed = capsys.readouterr().out
    assert "stopped:    after epoch 2: `val_loss` was no better in 2 validations than 0." in printed


def test_what_the_last_checkpoint_lost_stands_below_it(capsys):
    fit(epochs=3, monitor=None, worse=True)
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("checkpoint: "))
    assert re.fullmatch(
        r" {12}the last one, `val_loss` \d+\.\d{4}; the best was \d\.\d{4} in epoch 0: give `ModelCheckpoint` a "
        r"`monitor: val_loss`",
        lines[place + 1],
    )


def test_a_fit_that_took_no_step_says_that_nothing_was_trained(capsys):
    fit(epochs=0)
    assert "trained:    nothing, no step was taken" in capsys.readouterr().out


def test_without_an_export_there_is_the_command_that_makes_a_bundle(capsys):
    fit(EarlyStopping("val_loss", patience=5), epochs=2)
    printed = capsys.readouterr().out
    assert "stopped:" not in printed
    line = next(line for line in printed.splitlines() if line.startswith("bundle:"))
    words = shlex.split(line.partition("make one: ")[2])
    assert words[:2] == ["lightning-mp", "export"]
    assert Path(words[2]).is_file()
    assert Path(words[words.index("--store") + 1]).is_dir()
    assert main([*words[1:], "--help"]) == 0
    known = capsys.readouterr().out
    assert all(option in known for option in ("--store", "--out"))


def test_with_one_there_is_not(capsys):
    fit(OnnxExport("bundle", precision="fp32"), epochs=1)
    printed = capsys.readouterr().out
    assert "bundle:     bundle\n" in printed
    assert "make one" not in printed


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.` is deprecated.*"),
    pytest.mark.filterwarnings("ignore:.*is undefined.*:lightning_mp.errors.LightningMPWarning"),
]
