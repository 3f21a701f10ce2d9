"""Every public callback on a module that holds TorchScript, which takes no hooks."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_mp
from lightning_mp import GradientUnderflowMonitor, KeepInFP32, LossScaleMonitor, NonFiniteMonitor
from lightning_mp.errors import LightningMPWarning

CALLBACKS = sorted(
    name
    for name in lightning_mp.__all__
    if inspect.isclass(kind := getattr(lightning_mp, name)) and issubclass(kind, pl.Callback)
)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "GradientClipping": {"max_norm": 0.5},
    "GradientUnderflowMonitor": {"every_n_steps": 1, "probe_every_n_steps": 1},
    "OnnxExport": {"dirpath": "bundle", "strict": False},
    "PrecisionReport": {"dirpath": "report"},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*`torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:the training loader of .* has no `state_dict`:lightning_mp.errors.LightningMPWarning"
    ),
    # The learning rate of the toy is high on purpose: weights move within six steps.
    pytest.mark.filterwarnings(
        "ignore:.*`PrecisionLint` found 1 thing(.|\\n)*MP111:lightning_mp.errors.LightningMPWarning"
    ),
    pytest.mark.filterwarnings("ignore:.*`OnnxExport` wrote no bundle.*:lightning_mp.errors.LightningMPWarning"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Whole(pl.LightningModule):
    """All that is trained is one scripted network."""

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        super().__init__()
        layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 8), nn.Linear(8, 1))
        self.net = torch.jit.script(nn.Sequential(*layers))
        self.bad = bad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return (self(batch[0]).float().squeeze(1) - batch[1]).square().mean() * (1e12 if batch_idx in self.bad else 1.0)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)


class Inside(Whole):
    """A scripted block between plain layers."""

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        super().__init__(bad)
        block = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))
        self.net = nn.Sequential(nn.Linear(4, 8), block, nn.Linear(8, 8), nn.Linear(8, 1))


KINDS = [Whole, Inside]


def fit(module: pl.LightningModule, *callbacks: pl.Callback, batches: int = 6) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.randn(8 * batches, 4)
    pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        plugins=[pl.plugins.precision.MixedPrecision("16-mixed", "cpu", scaler)],
        callbacks=list(callbacks),
    ).fit(module, DataLoader(TensorDataset(x, x.sum(1)), batch_size=8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_does_not_stop_the_fit(name, kind):
    module = kind(bad=(1, 2))
    before = [weight.detach().clone() for weight in module.parameters()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cannot keep TorchScript.*", LightningMPWarning)
        fit(module, getattr(lightning_mp, name)(**ARGUMENTS.get(name, {})))
    assert not all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in CALLBACKS if name.endswith("Monitor")])
def test_a_monitor_leaves_the_weights_bit_identical(name, kind):
    results, start = [], kind().state_dict()
    for callbacks in ([], [getattr(lightning_mp, name)(**ARGUMENTS.get(name, {}))]):
        module = kind(bad=(1, 3))
        module.load_state_dict(start)
        torch.manual_seed(7)
        fit(module, *callbacks)
        results.append(module.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in start)


def test_skipped_steps_and_the_layers_of_an_overflow_are_told_as_ever():
    monitor = LossScaleMonitor()
    fit(Whole(bad=(1, 2)), monitor)
    assert [event.step for event in monitor.events] == [1, 2]
    monitor, finder = LossScaleMonitor(), NonFiniteMonitor()

    class Overflows(Inside):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * 1e6)

    with pytest.warns(LightningMPWarning, match=r"forward pass of batch 0 \(step 0\): `net\.0`, `output`"):
        fit(Overflows(), monitor, finder, batches=2)
    assert [event.layers[0] for event in monitor.events] == ["net.0", "net.0"]
    assert [(event.module, event.tensor) for event in finder.events] == [("net.0", "output")] * 2


def test_the_underflow_of_scripted_layers_is_measured():
    monitor = GradientUnderflowMonitor(every_n_steps=1, probe_every_n_steps=1)
    fit(Whole(), monitor)
    assert monitor.report is not None
    assert {layer.layer for layer in monitor.report.layers} >= {"net.0", "net.4", "net.5"}


@pytest.mark.parametrize(
    ("kind", "modules", "left", "kept"),
    [
        (Whole, "auto", "`net`", ()),
        (Inside, "auto", r"`net\.1`", ("net.0", "net.3")),
        (Inside, ["net.1", "net.3"], r"`net\.1`", ("net.3",)),
        (Inside, ["net.1.0"], r"`net\.1\.0`", ()),
    ],
    ids=["whole", "inside", "named", "child"],
)
def test_scripted_layers_are_not_kept_and_that_is_said_once(kind, modules, left, kept):
    keep = KeepInFP32(modules)
    with pytest.warns(LightningMPWarning, match=f"cannot keep TorchScript in float32: {left}\n") as told:
        fit(kind(), keep)
    assert sum("TorchScript" in str(warning.message) for warning in told) == 1
    assert keep.layers == kept
    assert keep.verified == dict.fromkeys(kept, True)
