from __future__ import annotations

import copy
import json
import math
import warnings

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import LossFluctuationMonitor, LossScaleMonitor
from lightning_mp.errors import ConfigurationError, LightningMPWarning
from lightning_mp.precision.fluctuation_report import FluctuationReport


class Module(pl.LightningModule):
    """Its validation losses are those given, one an epoch; what else happens in an epoch is given too."""

    def __init__(self, losses, *, happens=None, fused=False):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.losses, self.happens, self.fused = list(losses), happens or {}, fused

    def training_step(self, batch, batch_idx):
        x = batch[0]
        now = self.happens.get(self.current_epoch, "")
        if now == "overflow":
            x = x * 1e30
        loss = self.last(self.norm(self.first(x).float())).float().square().mean()
        return loss * (100.0 if now == "steep" else 1.0)

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.log("val_loss", self.losses[self.current_epoch])
        else:
            self.log("val_loss", 1e9)

    def on_train_epoch_end(self):
        now = self.happens.get(self.current_epoch, "")
        if now == "lr":
            for group in self.optimizers().param_groups:
                group["lr"] *= 10

    def on_validation_start(self):
        if self.trainer.sanity_checking:
            return
        now = self.happens.get(self.current_epoch, "")
        with torch.no_grad():
            if now == "weights":
                self.last.weight[0, 3] = math.nan
            if now == "buffers":
                self.norm.running_var[2] = math.inf

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-4, fused=self.fused)


def loader(batches=4, largest=1.0):
    x = torch.randn(8 * batches, 4).clamp(-3, 3) * largest
    return DataLoader(TensorDataset(x), batch_size=8)


def run(make_trainer, module, *callbacks, val=None, **settings):
    settings = {"max_epochs": len(module.losses), "callbacks": list(callbacks), **settings}
    trainer = make_trainer(**settings)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(module, loader(), val or loader(1), ckpt_path=settings.pop("ckpt_path", None))
    return trainer, [str(entry.message) for entry in said if issubclass(entry.category, LightningMPWarning)]


def test_a_loss_that_stays_within_the_threshold_triggers_nothing(make_trainer):
    monitor = LossFluctuationMonitor()
    trainer, said = run(make_trainer, Module([1.0, 1.1, 0.9, 1.0, 1.14]), monitor, num_sanity_val_steps=1)
    assert not monitor.reports
    assert not said
    assert trainer.callback_metrics["loss_fluctuation"] == pytest.approx(0.14, abs=1e-6)  # median of 1, 1.1, .9, 1


def test_the_reference_is_the_median_so_that_one_outlier_does_not_move_it(make_trainer):
    monitor = LossFluctuationMonitor(window=3)
    run(make_trainer, Module([1.0, 1.0, 1.0, 9.0, 1.05, 1.0]), monitor)
    assert [(report.epoch, report.reference, report.improved) for report in monitor.reports] == [(3, 1.0, False)]


@pytest.mark.parametrize(("mode", "improved"), [("min", True), ("max", False)])
def test_a_move_down_is_an_improvement_of_a_loss_and_a_fall_of_a_score(make_trainer, mode, improved):
    monitor = LossFluctuationMonitor(mode=mode)
    _, said = run(make_trainer, Module([1.0, 1.0, 0.5]), monitor)
    (report,) = monitor.reports
    assert (report.improved, report.change) == (improved, pytest.approx(-0.5))
    assert report.cause.kind == ("improvement" if improved else "nothing")
    assert len(said) == (not improved)


@pytest.mark.parametrize(
    ("what", "kind", "place"),
    [
        ("weights", "non_finite_weights", "last.weight"),
        ("buffers", "non_finite_buffers", "norm.running_var"),
        ("overflow", "skipped_steps", None),
        ("lr", "learning_rate", None),
        ("steep", "gradient_norm", None),
    ],
)
@pytest.mark.parametrize("with_scale_monitor", [False, True])
def test_the_likely_cause_is_named(make_trainer, what, kind, place, with_scale_monitor):
    beside = [LossScaleMonitor()] if with_scale_monitor else []
    monitor = LossFluctuationMonitor()
    module = Module([1.0, 1.0, 1.0, 1.0, 2.0], happens={(3 if what == "lr" else 4): what})
    _, said = run(make_trainer, module, *beside, monitor, scale=4.0)
    report = monitor.reports[-1]
    assert report.epoch == 4
    if what == "overflow":  # the buffers took the bad batches too
        assert {finding.kind for finding in report.findings} >= {kind, "non_finite_buffers"}
        skipped = next(finding for finding in report.findings if finding.kind == kind)
        assert "4 of 4 steps" in skipped.text
        assert skipped.places == (("first",) if with_scale_monitor else ())
    else:
        assert report.cause.kind == kind
        assert report.cause.places == (() if place is None else (place,))
    assert sum("hint:" in text and "worsened by 100%" in text for text in said) == 1
    assert [finding.likelihood for finding in report.findings] == sorted(
        (finding.likelihood for finding in report.findings), reverse=True
    )


@pytest.mark.parametrize("largest", [1e6, math.nan])
def test_a_batch_unlike_those_before_is_named(make_trainer, largest):
    class Jumping(Module):
        def val_dataloader(self):
            return loader(1, largest if self.trainer.current_epoch == 2 else 1.0)

        def train_dataloader(self):
            return loader()

    monitor = LossFluctuationMonitor()
    module = Jumping([1.0, 1.0, 3.0])
    trainer = make_trainer(max_epochs=3, callbacks=[monitor], reload_dataloaders_every_n_epochs=1)
    with pytest.warns(LightningMPWarning, match=r"`batch\[0\]`"):
        trainer.fit(module)
    assert monitor.reports[-1].cause.kind == ("non_finite_batch" if math.isnan(largest) else "batch_range")


def test_a_loss_that_is_not_finite_is_reported_and_kept_out_of_the_reference(make_trainer):
    monitor = LossFluctuationMonitor()
    _, said = run(make_trainer, Module([math.nan, 1.0, math.inf, 1.05]), monitor)
    assert [(report.epoch, report.value, report.change) for report in monitor.reports] == [
        (0, None, None),
        (2, None, None),
    ]
    assert len(said) == 2
    json.dumps([report.to_dict() for report in monitor.reports], allow_nan=False)


@pytest.mark.parametrize(
    ("losses", "epochs"),
    [
        ([0.0, 0.0, 0.0], []),
        ([1e-9, 5e-9, 1e-10], []),  # rounding
        ([0.3, -0.3, 0.31, -0.29, 0.3], []),  # swings around zero, as wide as ever
        ([1e-9, 1e-9, 1e-3], [2]),
    ],
)
def test_losses_near_zero(make_trainer, losses, epochs):
    monitor = LossFluctuationMonitor(threshold=2.5 if losses[0] == 0.3 else 0.15)
    run(make_trainer, Module(losses), monitor)
    assert [report.epoch for report in monitor.reports] == epochs


@pytest.mark.filterwarnings("ignore:.*`val_loss` worsened:lightning_mp.errors.LightningMPWarning")
def test_a_resumed_run_reports_what_an_uninterrupted_one_does(make_trainer, tmp_path):
    losses, happens = [1.0, 1.0, 1.0, 2.0, 1.0], {2: "overflow", 3: "overflow"}
    torch.manual_seed(3)
    start = Module(losses).state_dict()
    batches = loader()
    results = []
    for stop in (None, 3):
        monitor, module = LossFluctuationMonitor(), Module(losses, happens=happens)
        module.load_state_dict(start)
        trainer = make_trainer(max_epochs=stop or 5, callbacks=[monitor])
        trainer.fit(module, batches, batches)
        if stop:
            trainer.save_checkpoint(tmp_path / "run.ckpt")
            assert copy.deepcopy(monitor).state_dict() == monitor.state_dict()
            monitor, module = LossFluctuationMonitor(), Module(losses, happens=happens)
            trainer = make_trainer(max_epochs=5, callbacks=[monitor])
            trainer.fit(module, batches, batches, ckpt_path=tmp_path / "run.ckpt", weights_only=True)
        results.append(monitor.state_dict())
    assert results[0]["reports"]
    results = [json.dumps(one, default=str) for one in results]
    assert results[0] == results[1]


@pytest.mark.parametrize("fused", [False, True])
def test_its_own_count_of_skips_equals_the_loss_scale_monitors(make_trainer, fused):
    beside, alone = LossScaleMonitor(), LossFluctuationMonitor()
    for callbacks in ([beside], [alone]):
        torch.manual_seed(0)
        module = Module([1.0, 1.0, 1.0], happens={1: "overflow"}, fused=fused)
        run(make_trainer, module, *callbacks)
    assert (beside.history.attempts, beside.history.skipped) == tuple(alone.state_dict()["counts"]) == (12, 4)


def test_gradient_norms_are_unscaled(make_trainer):
    norms = []
    for fused in (False, True):
        torch.manual_seed(0)
        monitor, batches = LossFluctuationMonitor(), loader()
        make_trainer(callbacks=[monitor]).fit(Module([1.0], fused=fused), batches, batches)
        norms.append(monitor.state_dict()["norms"])
    assert len(norms[0]) == 4
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
    assert max(norms[0]) < 100


def test_a_metric_that_is_not_logged_is_told_once(make_trainer):
    monitor = LossFluctuationMonitor("val_los")
    _, said = run(make_trainer, Module([1.0, 1.0]), monitor)
    assert [text.split("\n")[0] for text in said] == [
        "`LossFluctuationMonitor` found no metric `val_los` after a validation; logged is `val_loss`"
    ]


@pytest.mark.parametrize("settings", [{"threshold": 0}, {"window": 0}, {"mode": "best"}])
def test_wrong_arguments(settings):
    with pytest.raises(ConfigurationError, match=f"`{next(iter(settings))}`"):
        LossFluctuationMonitor(**settings)


def test_reports_in_words_and_back():
    monitor = LossFluctuationMonitor()
    assert "min_scale" not in monitor.state_key
    report = FluctuationReport.from_dict(
        {
            "step": 3, "epoch": 1, "monitor": "val_loss", "value": None, "reference": 1.0, "change": None,
            "improved": False,
            "findings": [{"kind": "nothing", "likelihood": 0.1, "text": "all quiet", "cure": "wait", "places": ["a"]}],
        }
    )  # fmt: skip
    assert str(report) == "`val_loss` is not finite against a running median of 1 at step 3: all quiet"
    assert report.cause.places == ("a",)
