"""A recipe through the real command line: what it leaves, what it refuses, and how it ends."""

from __future__ import annotations

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning.pytorch as pl  # noqa: F401 (its log handler keeps the stderr of its import, so not inside a test)
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lightning_mp.bundle import Bundle
from lightning_mp.cli.main import main
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.running.cli import _named

SMALL = [
    "--config=quickstart",
    "--data.synthetic.impressions=6000",
    "--data.synthetic.users=120",
    "--data.synthetic.items=40",
    "--trainer.max_epochs=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder in which the small quickstart was run, and what it printed."""
    folder = tmp_path_factory.mktemp("run")
    ended = run(folder, "fit", *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert "Tip:" not in ended.stderr  # what Lightning would sell
    assert "Warning" not in ended.stderr
    assert "nothing to do" not in ended.stdout + ended.stderr  # the test after the fit prepares anew, and was told
    assert (ended.stdout + ended.stderr).count(" entries, ") == 8
    return folder, ended.stdout


def run(folder: Path, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::FutureWarning", "-m", "lightning_mp", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **options)


def checkpoint(folder: Path) -> str:
    (found,) = (folder / "runs/quickstart/version_0/checkpoints").glob("*.ckpt")
    return str(found.relative_to(folder))


def test_a_fit_ends_with_the_table_the_places_and_the_line_that_serves(fitted):
    folder, printed = fitted
    for name in ("model", "popularity", "item mean", "user + item mean", "running user + item mean", "best possible"):
        assert f"│ {name}" in printed
    assert f"checkpoint: {checkpoint(folder)}" in printed
    assert "bundle:     runs/quickstart/bundle" in printed
    assert "lightning-mp serve runs/quickstart/bundle" in printed
    assert Bundle.open(folder / "runs/quickstart/bundle").manifest.task == "click"


def test_the_run_keeps_its_configuration_its_log_and_its_metrics(fitted):
    folder, printed = fitted
    version = folder / "runs/quickstart/version_0"
    assert "impressions: 6000" in (version / "config.yaml").read_text()
    with (version / "metrics.csv").open() as file:
        logged = {name for line in csv.DictReader(file) for name, value in line.items() if value}
    assert {"train_loss", "val_loss", "val_auc", "test_auc", "parity/max_logit_difference"} <= logged
    table = json.loads((version / "metrics.json").read_text())
    model = next(row for row in table["rows"] if row["name"] == "model")
    assert f"{model['auc']:.4f}" in printed


def test_test_measures_the_checkpoint_as_fit_did(fitted):
    folder, printed = fitted
    ended = run(folder, "test", *SMALL, f"--ckpt_path={checkpoint(folder)}")
    assert ended.returncode == 0, ended.stderr
    line = next(line for line in printed.splitlines() if line.startswith("│ model"))
    assert line in ended.stdout
    assert not (folder / "runs/quickstart/version_1").exists()


def test_validate_measures_the_validation_part(fitted):
    folder, _ = fitted
    ended = run(folder, "validate", *SMALL, f"--ckpt_path={checkpoint(folder)}")
    assert ended.returncode == 0, ended.stderr
    assert "val_auc" in ended.stdout


def test_predict_writes_raw_keys_and_the_models_scores(fitted):
    folder, _ = fitted
    ended = run(folder, "predict", *SMALL, f"--ckpt_path={checkpoint(folder)}", "--output=out/scores.parquet")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "scores: out/scores.parquet"
    scores = pq.read_table(folder / "out/scores.parquet")
    assert scores.column_names == ["row", "time", "user", "item", "score"]
    store = FeatureStore(folder / "runs/quickstart/store")
    part, log = store.load("test"), pq.read_table(folder / "runs/quickstart/store-log.parquet")
    row = scores["row"].to_numpy()
    assert row.tolist() == sorted(part.row.tolist())
    for ours, theirs in {"user": "user_id", "item": "item_id", "time": "event_time"}.items():
        assert scores[ours].cast("int64").to_numpy().tolist() == log[theirs].cast("int64").to_numpy()[row].tolist()
    values = scores["score"].to_numpy()
    assert values.dtype == np.float32
    assert ((values > 0) & (values < 1)).all()


@pytest.fixture
def told(fitted, monkeypatch, capsys):
    """Run a command in the fitted folder and give its exit code and its complaint."""
    monkeypatch.chdir(fitted[0])

    def tell(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(list(arguments))
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.count("error: ") == 1
        return code, error[error.index("error: ") :]

    return tell


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_a_command_that_measures_needs_a_checkpoint(told, command):
    code, error = told(command, *SMALL)
    assert code == 2
    assert f"`{command}` needs a checkpoint" in error
    assert "--ckpt_path" in error


def test_a_checkpoint_that_is_not_there_is_named(told):
    code, error = told("test", *SMALL, "--ckpt_path=runs/none.ckpt")
    assert code == 5
    assert "there is no checkpoint `runs/none.ckpt`" in error


def test_an_option_that_the_checkpoint_would_override_is_refused(told, fitted):
    at = f"--ckpt_path={checkpoint(fitted[0])}"
    code, error = told("test", *SMALL, at, "--model.network.cross_layers", "4")
    assert code == 2
    assert "`--model.network.cross_layers 4` would have no effect" in error
    assert "trained with 2" in error


def test_a_checkpoint_of_other_data_is_refused_with_the_feature_named(told, fitted, tmp_path):
    at = f"--ckpt_path={checkpoint(fitted[0])}"
    code, error = told("test", *SMALL, at, f"--data.store={tmp_path / 'other'}", "--data.synthetic.users=80")
    assert code == 3
    assert "feature `user_id` differs in `vocabulary_size`" in error
    assert "give the `--data` options that the fit had, or train again on this data" in error
    assert "version" not in error, "the other store has nothing like the fit's data"


def test_options_of_the_fit_that_were_left_out_are_asked_for(fitted, tmp_path, monkeypatch, capsys):
    shutil.copytree(fitted[0], tmp_path / "again")
    monkeypatch.chdir(tmp_path / "again")
    at = f"--ckpt_path={checkpoint(tmp_path / 'again')}"
    assert main(["test", *(option for option in SMALL if "users" not in option), at]) == 3
    error = " ".join(capsys.readouterr().err.split())
    assert "feature `user_id` differs in `vocabulary_size`" in error
    wanted = "give the `--data` options that the fit had, or train again on this data: version 1 of the store `"
    assert wanted in error
    assert "is like the checkpoint's data" in error


BAD_SETTINGS = {
    "batch size": ("--data.batch_size=0", "`batch_size` must be at least 1, got 0"),
    "split": ("--data.split.test=2", "`split.test` must be in (0, 1), got 2.0"),
    "two precisions": ("--trainer.precision=16-mixed", "Received both `precision=16-mixed` and `plugins="),
    "event": ("--data.label.event=bought", "'bought' is not a kind of event"),
}


@pytest.mark.parametrize("what", BAD_SETTINGS)
def test_a_setting_that_a_class_refuses_is_one_clear_error(told, what):
    option, problem = BAD_SETTINGS[what]
    code, error = told("fit", *SMALL, option)
    assert code == 2
    assert problem in error
    assert "Union subtypes" not in error


def long_run(folder: Path) -> subprocess.Popen[str]:
    """Start a fit of many epochs and wait until its first checkpoint stands."""
    arguments = [*SMALL, "--trainer.max_epochs=100000", "--trainer.callbacks=null"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_mp", "fit", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    checkpoints = folder / "runs/quickstart/version_0/checkpoints"
    while not list(checkpoints.glob("*.ckpt")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_fit_with_its_own_code(tmp_path, number, code):
    process = long_run(tmp_path)
    process.send_signal(number)
    printed, _ = process.communicate()
    assert process.returncode == code, printed
    assert "Traceback" not in printed
    assert "serve it" not in printed


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_a_signal_in_the_middle_of_a_save_is_no_full_disk(raised):
    class Cut:
        def write(self, data):
            raise raised

    with pytest.raises(raised), _named("runs"):
        torch.save({"w": torch.zeros(10)}, Cut())


def limited(size: int):
    """What a full disk looks like to one process: no file grows beyond `size`."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("size", [20_000, 100_000, 200_000])
def test_no_space_is_one_error_and_nothing_written_before_is_lost(fitted, size):
    folder, _ = fitted
    bundle = (folder / "runs/quickstart/bundle/manifest.json").read_bytes()
    ended = run(folder, "fit", *SMALL, "--data.batch_size=500", preexec_fn=limited(size))
    assert ended.returncode == 5, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "File too large" in ended.stderr
    assert "runs/quickstart" in ended.stderr
    assert (folder / "runs/quickstart/bundle/manifest.json").read_bytes() == bundle
    assert Bundle.open(folder / "runs/quickstart/bundle")
    assert len(FeatureStore(folder / "runs/quickstart/store").load("test"))
    assert not list(folder.rglob(".lightning_mp-tmp-*"))


def test_no_permission_is_one_error(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "runs").mkdir(mode=0o500)
    ended = run(tmp_path, "fit", *SMALL)
    assert ended.returncode == 5
    assert "Permission denied" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_file_where_the_runs_folder_should_be_is_one_error(tmp_path):
    (tmp_path / "runs").write_text("")
    ended = run(tmp_path, "fit", *SMALL)
    assert ended.returncode == 5
    assert "`runs" in ended.stderr
    assert "Traceback" not in ended.stderr
