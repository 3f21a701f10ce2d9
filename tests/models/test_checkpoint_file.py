from __future__ import annotations

import random
import zipfile

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_mp.errors import ArtifactError
from lightning_mp.models.checkpoint_file import require_sound


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    trainer = pl.Trainer(
        max_steps=1, logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        enable_checkpointing=False, limit_val_batches=0, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(BoringModel())
    trainer.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


def test_a_sound_checkpoint_passes(checkpoint):
    require_sound(checkpoint)


def test_every_flipped_bit_of_a_tensor_is_found(checkpoint, tmp_path):
    content = checkpoint.read_bytes()
    with zipfile.ZipFile(checkpoint) as archive:
        tensors = [entry for entry in archive.infolist() if "/data/" in entry.filename and entry.file_size]
    assert tensors
    draw = random.Random()
    for entry in tensors:
        start = content.index(entry.filename.encode()) + len(entry.filename)
        extra = int.from_bytes(content[entry.header_offset + 28 : entry.header_offset + 30], "little")
        for _ in range(5):
            flipped = bytearray(content)
            flipped[start + extra + draw.randrange(entry.file_size)] ^= 1 << draw.randrange(8)
            (tmp_path / "flip.ckpt").write_bytes(flipped)
            torch.load(tmp_path / "flip.ckpt", weights_only=True)  # torch itself says nothing
            with pytest.raises(ArtifactError, match=f"flip.ckpt` is damaged: `{entry.filename}` fails its checksum"):
                require_sound(tmp_path / "flip.ckpt")


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_a_cut_file_is_found(checkpoint, tmp_path, kept):
    content = checkpoint.read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(ArtifactError, match=r"cut.ckpt` is no checkpoint, or was cut short or altered"):
        require_sound(tmp_path / "cut.ckpt")


@pytest.mark.parametrize("content", [{"a": 1}, [1], torch.ones(2)])
def test_another_file_of_torch_is_told(tmp_path, content):
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(ArtifactError, match=r"other.ckpt` is no checkpoint of a Lightning Trainer"):
        require_sound(tmp_path / "other.ckpt")


def test_text_and_nothing_are_told(tmp_path):
    (tmp_path / "text.ckpt").write_text("hello")
    with pytest.raises(ArtifactError, match=r"text.ckpt` is no checkpoint, or was cut short"):
        require_sound(tmp_path / "text.ckpt")
    with pytest.raises(ArtifactError, match=r"there is no checkpoint `.*none.ckpt`"):
        require_sound(tmp_path / "none.ckpt")
