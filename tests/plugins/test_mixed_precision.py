from __future__ import annotations

import logging
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.plugins.precision import MixedPrecision, Precision

from lightning_mp import mixed_precision
from lightning_mp.errors import ConfigurationError, EnvironmentMismatchError, LightningMPWarning
from lightning_mp.hardware.facts import Hardware
from lightning_mp.precision.bounded_grad_scaler import BoundedGradScaler
from lightning_mp.precision.choose_precision import choose_precision

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*emulates float16.*:lightning_mp.errors.LightningMPWarning"),
    pytest.mark.filterwarnings("ignore:Precision 16-mixed is not supported by the model summary"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
QUIET = {
    "accelerator": "cpu",
    "limit_train_batches": 4,
    "limit_val_batches": 0,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def test_auto_takes_what_the_hardware_has_and_logs_why(caplog):
    with caplog.at_level(logging.INFO):
        plugin = mixed_precision(device="cpu")
    chosen, reason = choose_precision(capability=None, cpu_flags=Hardware.read().cpu_flags)
    assert plugin.precision == chosen
    assert f"precision `{chosen}` on `cpu`: {reason}" in caplog.text


def test_float16_asked_for_on_a_processor_without_it_trains_in_float16_with_one_warning():
    if choose_precision(capability=None, cpu_flags=Hardware.read().cpu_flags)[0] == "16-mixed":
        pytest.skip("this processor multiplies float16")
    with pytest.warns(LightningMPWarning, match=r"which emulates float16 many times slower.*") as caught:
        plugin = mixed_precision("16-mixed", "cpu", init_scale=512.0)
    assert len(caught) == 1
    assert "hint: use `auto`" in str(caught[0].message)
    seen = []

    class Model(BoringModel):
        def training_step(self, batch, batch_idx):
            seen.append(self.layer(batch).dtype)
            return super().training_step(batch, batch_idx)

    trainer = pl.Trainer(**QUIET, max_epochs=1, plugins=[plugin])
    trainer.fit(Model())
    assert set(seen) == {torch.float16}
    assert trainer.precision == "16-mixed"
    assert type(plugin) is MixedPrecision  # a subclass would lose its scaler's state on a resume
    assert isinstance(trainer.scaler, BoundedGradScaler)
    assert (trainer.scaler.get_scale(), trainer.scaler.get_growth_interval()) == (512.0, 200)


@pytest.mark.parametrize(("total", "interval"), [(30, 10), (1000, 20), (5049, 100), (10_000, 200), (10**7, 200)])
def test_the_growth_interval_is_fitted_to_the_length_of_the_run(total, interval):
    assert mixed_precision("16-mixed", "cpu", total_steps=total).scaler.get_growth_interval() == interval


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        ({"total_steps": 400}, (128.0, 200)),
        ({"total_steps": 9_999}, (128.0, 200)),
        ({"total_steps": 10_000}, (512.0, 200)),
        ({"growth_interval": 7}, (512.0, 7)),
        ({}, (512.0, 200)),
    ],
)
def test_a_short_run_steps_back_far_after_an_overflow(arguments, after):
    """Steps are counted by hand: one that overflows, then those without until the scale grows again."""
    scaler = mixed_precision("16-mixed", "cpu", init_scale=1024.0, **arguments).scaler
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.0)

    def step(loss):
        scaler.scale(weight * loss).sum().backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return scaler.get_scale()

    scale, waited = step(float("inf")), 1
    while step(1.0) == scale:
        waited += 1
    assert (scale, waited) == after


def test_a_scale_finds_its_place_within_a_short_run():
    class Small(BoringModel):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch * 1e-3, batch_idx)["loss"] * 1e-6

    scales = {}
    for total in (None, 200):
        plugin = mixed_precision("16-mixed", "cpu", total_steps=total)
        trainer = pl.Trainer(**{**QUIET, "limit_train_batches": 64}, max_steps=192, plugins=[plugin])
        trainer.fit(Small())
        scales[total] = trainer.scaler.get_scale()
    assert scales == {None: 1024.0, 200: 2.0**24}


@pytest.mark.parametrize("arguments", [{"total_steps": 0}, {"total_steps": 9, "growth_interval": 9}])
def test_a_wrong_length_is_named(arguments):
    with pytest.raises(ConfigurationError, match="`total_steps` must be at least 1 and excludes `growth_interval`"):
        mixed_precision("16-mixed", "cpu", **arguments)


def test_bf16_has_no_scaler_and_float32_is_the_plain_plugin():
    assert mixed_precision("bf16-mixed", "cpu").scaler is None
    assert type(mixed_precision("32-true", "cpu")) is Precision


@pytest.mark.parametrize("ours_first", [True, False])
def test_checkpoints_load_in_runs_with_the_stock_plugin_and_back(ours_first):
    def plugin(ours):
        if ours:
            return mixed_precision("16-mixed", "cpu", init_scale=64.0, growth_interval=3)
        return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3))

    first = pl.Trainer(**QUIET, max_epochs=1, plugins=[plugin(ours_first)])
    first.fit(model := BoringModel())
    first.save_checkpoint("run.ckpt")
    scale = first.scaler.get_scale()
    assert scale == 128.0

    second = pl.Trainer(**QUIET, max_epochs=2, plugins=[plugin(not ours_first)])
    second.fit(BoringModel(), ckpt_path="run.ckpt", weights_only=True)
    assert second.scaler.get_scale() == 256.0  # eight steps, one growth every three
    straight = pl.Trainer(**QUIET, max_epochs=2, plugins=[plugin(ours_first)])
    straight.fit(BoringModel())
    assert straight.scaler.state_dict() == second.scaler.state_dict()
    del model


@pytest.mark.parametrize("plugins", ["[{plugin}]", "{plugin}"], ids=["list", "single"])
def test_it_is_a_class_path_in_yaml(plugins, monkeypatch):
    plugin = (
        "{class_path: lightning_mp.mixed_precision, init_args: {precision: 16-mixed, device: cpu, init_scale: 32.0}}"
    )
    callbacks = "[{class_path: lightning_mp.LossScaleMonitor, init_args: {patience: 7}}, lightning_mp.KeepInFP32]"
    settings = "\n".join(f"  {key}: {str(value).lower()}" for key, value in QUIET.items())
    Path("run.yaml").write_text(
        f"seed_everything: 1\ntrainer:\n{settings}\n  max_epochs: 1\n"
        f"  plugins: {plugins.format(plugin=plugin)}\n  callbacks: {callbacks}\n"
    )
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning's own call of an old function
    monkeypatch.setattr(sys, "argv", ["run", "fit", "--config", "run.yaml"])
    cli = LightningCLI(BoringModel, BoringDataModule)
    assert cli.trainer.scaler.get_scale() == 32.0
    monitor = next(callback for callback in cli.trainer.callbacks if type(callback).__name__ == "LossScaleMonitor")
    assert (monitor.patience, monitor.history.attempts) == (7, 4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"precision": "16"}, "`precision` must be one of `auto`, `16-mixed`, `bf16-mixed`, `32-true`, got '16'"),
        ({"device": "tpu"}, "`device` must be `auto`, `cpu` or `cuda`, got 'tpu'"),
        ({"precision": "32-true", "device": "cpu", "init_scale": 0.0}, "`init_scale` must lie in"),
    ],
)
def test_wrong_arguments_are_named_on_every_machine(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        mixed_precision(**arguments)
    assert text in str(error.value)


def test_a_gpu_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EnvironmentMismatchError, match="`device` is `cuda`, and torch sees no GPU"):
        mixed_precision(device="cuda")


@pytest.mark.gpu
def test_auto_on_a_gpu_trains_in_float16():
    plugin = mixed_precision()
    if torch.cuda.get_device_capability() >= (7, 0):
        assert (plugin.precision, plugin.device) == ("16-mixed", "cuda")
    trainer = pl.Trainer(**{**QUIET, "accelerator": "gpu", "devices": 1}, max_epochs=1, plugins=[plugin])
    trainer.fit(BoringModel())
    assert trainer.scaler.get_scale() == 1024.0
