"""`lightning-mp export` and `lightning-mp check`, from a real checkpoint to an exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_mp.bundle import Bundle
from lightning_mp.cli.main import main
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.export.sample_inputs import read_samples
from lightning_mp.hardware.session import open_session
from lightning_mp.schema import Feature, FeatureSchema


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, users = np.random.default_rng(), Vocabulary([f"u{n}" for n in range(30)])
    schema = FeatureSchema(
        features=(
            Feature(name="user", kind="id", role="user", source_dtype="string", stored_dtype="int32",
                    vocabulary_size=users.size, vocabulary_digest=users.digest),
            Feature(name="price", kind="numeric", role="item", source_dtype="double", stored_dtype="float16",
                    missing="constant", missing_value=0.0),
            Feature(name="clicked", kind="numeric", role="label", source_dtype="bool", stored_dtype="float32"),
        )
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("store") / "s"
    parts = {
        name: pa.table({
            "user": rng.integers(0, users.size, count), "price": rng.normal(size=count),
            "clicked": rng.integers(0, 2, count).astype(np.float32),
        })
        for name, count in (("train", 200), ("validation", 60), ("test", 60))
    }  # fmt: skip
    FeatureStore(folder).write(parts, schema=schema, vocabularies={"user": users})
    return folder


RECIPE = """
trainer: {{max_epochs: 1, accelerator: cpu, logger: false, enable_progress_bar: false, enable_model_summary: false,
          default_root_dir: {root}}}
model:
  class_path: lightning_mp.models.ranking.RankingModule
  init_args:
    network: {{class_path: lightning_mp.networks.dcn_v2.DCNv2, init_args: {{embedding_dim: 4, hidden: [8]}}}}
data:
  class_path: lightning_mp.datamodules.ranking.RankingDataModule
  init_args: {{store: {store}, batch_size: 64}}
"""


@pytest.fixture(scope="module")
def checkpoint(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `lightning-mp fit` leaves."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "recipe.yaml").write_text(RECIPE.format(root=folder, store=store))
    command = [sys.executable, "-m", "lightning_mp", "fit", "--config", str(folder / "recipe.yaml")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert run.returncode == 0, run.stderr
    (found,) = folder.rglob("*.ckpt")
    return found


@pytest.fixture(scope="module")
def bundle(store: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "bundle"
    assert main(["export", str(checkpoint), "--store", str(store), "--out", str(folder)]) == 0
    return folder


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str]:
    code = main([str(argument) for argument in argv])
    return code, capsys.readouterr().err


def test_a_checkpoint_of_fit_becomes_a_bundle_with_its_weights(bundle, checkpoint, store):
    opened = Bundle.open(bundle)
    assert opened.manifest.precision["policy"] == "auto"
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    raw, logit = read_samples(bundle / "sample_inputs.npz", opened.manifest.inputs)
    np.testing.assert_array_equal(open_session(opened.pipeline).run(["logit"], raw)[0], logit)
    import onnx

    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(str(opened.model)).graph.initializer}
    np.testing.assert_array_equal(weights["network.head.bias"], state["network.head.bias"].numpy())


def test_it_says_what_it_wrote_how_well_and_what_to_do_next(store, checkpoint, tmp_path, capsys):
    out = tmp_path / "b"
    arguments = ["export", str(checkpoint), "--store", str(store), "--out", str(out), "--precision", "fp32"]
    assert main([*arguments, "--rows", "32"]) == 0
    shown = capsys.readouterr().out
    assert f"bundle {out}: fp32 (as asked)" in shown
    assert "on 32 test rows: largest logit difference" in shown
    assert f"lightning-mp serve {out}" in shown
    assert main(arguments) == 5
    assert "is there already: a bundle" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


def test_check_passes_a_whole_bundle_and_fails_a_damaged_one(bundle, tmp_path, capsys):
    assert main(["check", str(bundle)]) == 0
    shown = capsys.readouterr().out
    assert (shown.count("ok  "), "FAIL" in shown) == (10, False)
    assert main(["check", str(bundle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    damaged = Path(shutil.copytree(bundle, tmp_path / "damaged"))
    content = bytearray((damaged / "model.onnx").read_bytes())
    content[-100] ^= 8
    (damaged / "model.onnx").write_bytes(content)
    assert main(["check", str(damaged)]) == 5
    assert "FAIL  MP320  files  `" in capsys.readouterr().out
    assert main(["check", str(damaged), "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["findings"][0]["ok"] is False
    assert main(["check", str(tmp_path / "absent")]) == 5


def test_check_refuses_a_target_that_it_cannot_judge(bundle, capsys):
    code, said = refused(capsys, "check", bundle, "--target", "cuda-sm42")
    assert code == 2
    assert "cuda-sm42" in said


def test_check_judges_hardware_that_is_not_there(bundle, capsys):
    assert main(["check", str(bundle), "--target", "cuda-sm80"]) == 0
    shown = capsys.readouterr().out
    assert "compute capability  8.0" in " ".join(shown.split()).replace("compute capability ", "compute capability  ")
    assert "use_tf32=0" in shown


def test_what_is_no_checkpoint_is_refused_in_one_sentence(store, tmp_path, capsys):
    out = tmp_path / "b"
    code, said = refused(capsys, "export", tmp_path / "absent.ckpt", "--store", store, "--out", out)
    assert (code, "there is no checkpoint" in said) == (5, True)
    (tmp_path / "text.ckpt").write_text("hello")
    code, said = refused(capsys, "export", tmp_path / "text.ckpt", "--store", store, "--out", out)
    assert (code, "text.ckpt` is no checkpoint, or was cut short" in said) == (5, True)
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6.6"}, tmp_path / "other.ckpt")
    code, said = refused(capsys, "export", tmp_path / "other.ckpt", "--store", store, "--out", out)
    assert (code, "is not a checkpoint of lightning_mp" in said) == (2, True)
    gone = {"state_dict": {}, "pytorch-lightning_version": "2.6.6", "lightning_mp": {"module": "nowhere.Module"}}
    torch.save(gone, tmp_path / "gone.ckpt")
    code, said = refused(capsys, "export", tmp_path / "gone.ckpt", "--store", store, "--out", out)
    assert (code, "`nowhere.Module`, which cannot be imported" in said) == (2, True)
    assert not out.exists()


def test_a_missing_store_and_a_place_that_is_taken_are_refused(checkpoint, store, tmp_path, capsys):
    code, said = refused(capsys, "export", checkpoint, "--store", tmp_path / "absent", "--out", tmp_path / "b")
    assert (code, "it is not a feature store" in said) == (5, True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    code, said = refused(capsys, "export", checkpoint, "--store", store, "--out", tmp_path / "notes", "--overwrite")
    assert (code, "a folder with other files" in said) == (5, True)


def test_options_are_asked_for_by_name(capsys):
    code, said = refused(capsys, "export", "a.ckpt", "--stoer", "s")
    assert code == 2
    assert "lightning-mp export" in said
