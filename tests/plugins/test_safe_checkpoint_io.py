"""Checkpoints of a real Trainer: whole or not there, refused when a bit has changed, and readable by all others."""

from __future__ import annotations

import errno
import pickle
import random
import shutil
import zipfile
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import AsyncCheckpointIO

from lightning_mp.callbacks.resumable_random_state import ResumableRandomState
from lightning_mp.datamodules.resumable_loader import ResumableLoader
from lightning_mp.errors import ArtifactError
from lightning_mp.plugins.mixed_precision import mixed_precision
from lightning_mp.plugins.safe_checkpoint_io import SafeCheckpointIO
from lightning_mp.zip_digest import DigestWriter


class Rows(torch.utils.data.Dataset):
    values = torch.randn(64, 32)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        return self.values[rows]


class Model(BoringModel):
    def train_dataloader(self):
        return ResumableLoader(Rows(), batch_size=8, seed=3)


def trainer(folder: Path, *plugins, steps=6, save_last: bool | str = "link") -> pl.Trainer:
    checkpoint = ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=2, save_top_k=2, monitor="step", mode="max", save_last=save_last
    )
    return pl.Trainer(
        max_steps=steps, plugins=list(plugins), callbacks=[checkpoint, ResumableRandomState()], logger=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, accelerator="cpu",
    )  # fmt: skip


there_already = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")


def weights(model: torch.nn.Module) -> list[list[float]]:
    return [parameter.flatten().tolist() for parameter in model.parameters()]


@there_already
@pytest.mark.parametrize("save_last", [True, "link"])
def test_a_run_goes_on_from_its_last_checkpoint(tmp_path, save_last):
    pl.seed_everything(1, verbose=False)
    whole = Model()
    start = [parameter.clone() for parameter in whole.parameters()]
    trainer(tmp_path / "whole", SafeCheckpointIO(), steps=12).fit(whole)
    broken = Model()
    broken.load_state_dict(dict(zip(broken.state_dict(), start, strict=True)))
    trainer(tmp_path / "run", SafeCheckpointIO(), mixed_precision("32-true", "cpu"), save_last=save_last).fit(broken)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["last.ckpt", "step=4.ckpt", "step=6.ckpt"]
    assert (tmp_path / "run" / "last.ckpt").is_symlink() == (save_last == "link")
    resumed = Model()
    run = trainer(tmp_path / "run", SafeCheckpointIO(), steps=12)
    run.fit(resumed, ckpt_path=tmp_path / "run" / "last.ckpt")
    assert run.global_step == 12
    assert weights(resumed) == weights(whole)


@there_already
def test_stock_lightning_reads_ours_and_we_read_theirs(tmp_path):
    ours, stock = Model(), Model()
    trainer(tmp_path / "ours", SafeCheckpointIO()).fit(ours)
    trainer(tmp_path / "stock").fit(stock)
    loaded = Model.load_from_checkpoint(tmp_path / "ours" / "last.ckpt")
    assert weights(loaded) == weights(ours)
    trainer(tmp_path / "ours", steps=8).fit(loaded, ckpt_path=tmp_path / "ours" / "last.ckpt")
    content = SafeCheckpointIO().load_checkpoint(tmp_path / "stock" / "last.ckpt")
    assert content["state_dict"]["layer.weight"].tolist() == stock.layer.weight.tolist()
    for mapped in (True, False):
        content = torch.load(tmp_path / "ours" / "step=6.ckpt", weights_only=True, mmap=mapped)
        assert content["global_step"] == 6


def test_no_flipped_bit_loads_as_other_numbers(tmp_path):
    model = Model()
    trainer(tmp_path, SafeCheckpointIO(), save_last=True).fit(model)
    path, damaged = tmp_path / "last.ckpt", tmp_path / "damaged.ckpt"
    content = path.read_bytes()
    refused = 0
    for place in random.sample(range(len(content)), 300):
        altered = bytearray(content)
        altered[place] ^= 1 << random.randrange(8)
        damaged.write_bytes(altered)
        try:
            loaded = SafeCheckpointIO().load_checkpoint(damaged)
        except ArtifactError:
            refused += 1
            continue
        assert place >= len(content) - 86  # within the digest's own name, where nothing is lost
        assert loaded["state_dict"]["layer.weight"].tolist() == model.layer.weight.tolist()
    assert refused > 250
    assert zipfile.ZipFile(path).testzip() is None


def test_a_damaged_checkpoint_stops_a_resumed_fit_before_it_begins(tmp_path):
    trainer(tmp_path, SafeCheckpointIO()).fit(Model())
    last = (tmp_path / "last.ckpt").resolve()
    for length in (0, 1, last.stat().st_size // 2, last.stat().st_size - 1):
        cut = tmp_path / "cut.ckpt"
        cut.write_bytes(last.read_bytes()[:length])
        with pytest.raises(ArtifactError, match=r"cut\.ckpt"):
            trainer(tmp_path / "next", SafeCheckpointIO()).fit(Model(), ckpt_path=cut)
    with pytest.raises(ArtifactError, match=r"there is no checkpoint.*none\.ckpt"):
        SafeCheckpointIO().load_checkpoint(tmp_path / "none.ckpt")


class Breaks:
    def __reduce__(self):
        raise RuntimeError("in the middle of a save")


def test_a_save_that_breaks_leaves_the_old_file_and_nothing_else(tmp_path):
    plugin, path = SafeCheckpointIO(), tmp_path / "last.ckpt"
    plugin.save_checkpoint({"w": torch.ones(1000)}, path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="in the middle"):
        plugin.save_checkpoint({"w": torch.zeros(1000), "x": Breaks()}, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]
    plugin.remove_checkpoint(path)
    assert not path.exists()


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), SystemExit(143), OSError(errno.ENOSPC, "No space left")])
def test_what_ends_a_write_is_raised_and_not_the_complaint_of_the_archive_about_it(tmp_path, monkeypatch, cause):
    written = []

    def write(self, data):
        written.append(len(data))
        if len(written) == 3:
            raise cause
        return len(data)

    monkeypatch.setattr(DigestWriter, "write", write)
    with pytest.raises(ArtifactError if isinstance(cause, OSError) else type(cause)) as told:
        SafeCheckpointIO().save_checkpoint({"w": torch.zeros(100_000)}, tmp_path / "last.ckpt")
    assert "unexpected pos" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_permission_is_named(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArtifactError, match="file"):
        SafeCheckpointIO().save_checkpoint({"w": torch.ones(1)}, tmp_path / "file" / "last.ckpt")
    with pytest.raises(TypeError, match="storage_options"):
        SafeCheckpointIO().save_checkpoint({"w": torch.ones(1)}, tmp_path / "a.ckpt", storage_options={"a": 1})


def test_only_plain_content_is_loaded_unless_told_otherwise(tmp_path):
    path = tmp_path / "a.ckpt"
    SafeCheckpointIO().save_checkpoint({"path": Path("x")}, path)
    with pytest.raises(pickle.UnpicklingError, match="eights only"):
        SafeCheckpointIO().load_checkpoint(path)
    assert SafeCheckpointIO().load_checkpoint(path, weights_only=False) == {"path": Path("x")}


def test_it_works_inside_lightnings_asynchronous_one(tmp_path):
    model = Model()
    trainer(tmp_path, AsyncCheckpointIO(SafeCheckpointIO()), save_last=True).fit(model)
    content = SafeCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    assert content["state_dict"]["layer.weight"].tolist() == model.layer.weight.tolist()
    shutil.rmtree(tmp_path)
