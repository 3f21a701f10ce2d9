"""What the page says of causes: the one that is there, first; and none that was not seen."""

from __future__ import annotations

import json
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import (
    KeepInFP32,
    LearningRateWarmup,
    LossFluctuationMonitor,
    LossScaleMonitor,
    NonFiniteMonitor,
    NormGuard,
    PrecisionReport,
)
from lightning_mp.callbacks.precision_report_causes import fluctuation
from lightning_mp.callbacks.precision_report_record import RunRecord
from lightning_mp.errors import NumericError
from lightning_mp.optim.row_wise_adagrad import RowWiseAdagrad

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:lightning_mp.errors.LightningMPWarning"),  # monitors warn of what is planted
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]


class Clicks(pl.LightningModule):
    """A tower with or without normalisation, whose loss may break from a batch on."""

    def __init__(self, *, lr: float = 1e-3, norm: bool = True, weight: float = 1.0, breaks: int = -1) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 8)
        middle = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.body = nn.Sequential(nn.Linear(12, 32), middle, nn.ReLU(), nn.Linear(32, 1))
        self.lr, self.breaks = lr, breaks
        with torch.no_grad():
            self.body[3].weight.mul_(weight)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids, x, y = batch
        logits = self.body(torch.cat([self.table(ids), x], 1)).float().squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        return loss * float("nan") if batch_idx == self.breaks else loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, -2))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def rows(count: int = 1920, *, nan: str = "") -> DataLoader[Any]:
    ids, x = torch.randint(200, (count,)), torch.randn(count, 4)
    y = torch.bernoulli(torch.sigmoid(3 * x[:, 0]))
    if nan == "feature":
        x[740, 2] = float("nan")  # row 4 of batch 23
    if nan == "label":
        y[740] = float("nan")
    return DataLoader(TensorDataset(ids, x, y), batch_size=32)


def page(report: PrecisionReport) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    assert report.path is not None
    facts = json.loads(report.path.with_suffix(".json").read_text())
    return facts["findings"], facts


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("where", ["feature", "label"])
def test_a_value_that_is_not_finite_is_found_off_logging_steps(make_trainer, where, precision, norm):
    report = PrecisionReport("report")
    scale = {} if precision == "16-mixed" else {"precision": precision}
    trainer = make_trainer(callbacks=[report], log_every_n_steps=10, accumulate_grad_batches=2, **scale)
    trainer.fit(Clicks(norm=norm), rows(nan=where), rows(64))
    found, facts = page(report)
    poisons = norm and (where == "feature" or precision != "16-mixed")
    assert found[0]["code"] == ("MP203" if poisons else "MP204")
    tensor, columns = ("batch[1]", [2]) if where == "feature" else ("batch[2]", [])
    bad = facts["finite"]["bad_batch"]
    assert (bad["batch"], bad["step"], bad["tensor"], bad["rows"], bad["columns"]) == (23, 11, tensor, [4], columns)
    assert f"batch 23 (step 11), `{tensor}`, rows 4" in found[0]["problem"]
    assert found[0]["cure"].startswith("drop or repair these rows")
    assert not {"MP207", "MP221"} & {one["code"] for one in found}
    assert "learning rate" not in " ".join(one["problem"] + one["cure"] for one in found)


@pytest.mark.parametrize("monitored", [False, True])
@pytest.mark.parametrize("norm", [True, False])
def test_a_cause_that_was_not_seen_is_not_named(make_trainer, norm, monitored):
    report = PrecisionReport("report")
    others = [NonFiniteMonitor()] * monitored
    trainer = make_trainer(callbacks=[*others, report], log_every_n_steps=10, precision="32-true")
    trainer.fit(Clicks(norm=norm, breaks=23), rows(), rows(64))
    found, facts = page(report)
    gone = facts["finite"]["loss_gone"]
    assert (gone["batch"], gone["step"], gone["finite"]) == (23, 23, True)
    said = " ".join(one["problem"] for one in found)
    assert "data" not in said
    assert "overflow" not in said
    if monitored:
        assert "as `NonFiniteMonitor` saw it: nan in the " in said
    else:
        assert "batch 23 (step 23), whose values are finite" in said
        assert any("`NonFiniteMonitor`, which names" in one["cure"] for one in found)
    assert not any("`NonFiniteMonitor`" in one["cure"] for one in found) or not monitored


def test_a_batch_that_is_no_longer_held_is_blamed_for_nothing(make_trainer, monkeypatch):
    monkeypatch.setattr("lightning_mp.callbacks.precision_report_recent._BYTES", 1)  # one batch alone
    report = PrecisionReport("report")
    make_trainer(callbacks=[report], log_every_n_steps=10, precision="32-true").fit(
        Clicks(), rows(nan="feature"), rows(64)
    )
    found, facts = page(report)
    assert facts["finite"]["loss_gone"]["finite"] is None
    assert facts["finite"]["bad_batch"] is None
    assert "the cause was not seen here" in found[0]["problem"]
    assert "NonFiniteMonitor" in found[0]["cure"]


@pytest.mark.parametrize("precision", ["16-mixed", "32-true", "bf16-mixed"])
@pytest.mark.parametrize("rate", [1.0, 1e4])
@pytest.mark.parametrize("log_every", [1, 10, 1000])
def test_a_learning_rate_far_too_high_is_the_first_finding(make_trainer, rate, precision, log_every):
    report = PrecisionReport("report")
    scale = {} if precision == "16-mixed" else {"precision": precision}
    model = Clicks(lr=rate, weight=0.01)  # the first loss is that of a coin
    trainer = make_trainer(callbacks=[report], log_every_n_steps=log_every, **scale)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    noise = rows()
    noise.dataset.tensors[2].copy_(torch.rand(1920).round())  # nothing to learn, so that none learns all the same
    trainer.fit(model, noise, rows(64))
    found, facts = page(report)
    assert found[0]["code"] == "MP221", found
    assert f"at a learning rate of {rate:.3g} (`Adam`) the weights of " in found[0]["problem"]
    growth = facts["finite"]["growth"]
    assert growth["from"] == pytest.approx(float(before[growth["weight"]].square().mean().sqrt()), rel=1e-4)
    assert growth["to"] > 5 * growth["from"]
    if rate == 1e4 and precision == "16-mixed":
        assert facts["loss_scale"]["collapse"]
        follows = [one["code"] for one in found if one["severity"] == "error"]
        assert follows[:2] == ["MP221", "MP201"]
        assert "KeepInFP32" not in found[1]["cure"]


def test_a_loss_that_leapt_tells_it_too(make_trainer):
    class Steep(Clicks):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return (self.body[0](torch.cat([self.table(batch[0]), batch[1]], 1)).float() - 1).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e3)

    report = PrecisionReport("report")
    make_trainer(callbacks=[report], log_every_n_steps=50, precision="32-true").fit(Steep(), rows(), rows(64))
    found, _ = page(report)
    assert found[0]["code"] == "MP221"
    assert "at a learning rate of 1e+03 (`SGD`) the training loss leapt from " in found[0]["problem"]


@pytest.mark.parametrize("kind", ["adam", "adagrad", "sgd"])
def test_a_run_that_learns_is_not_told_of_its_learning_rate(make_trainer, kind):
    class Learns(Clicks):
        def configure_optimizers(self) -> Any:
            weights = [p for p in self.parameters() if p.dim() == 2]
            if kind == "adagrad":
                return RowWiseAdagrad(weights, lr=0.1)
            return torch.optim.SGD(weights, lr=0.5) if kind == "sgd" else torch.optim.Adam(weights, lr=1e-2)

    report = PrecisionReport("report")
    make_trainer(callbacks=[report], max_epochs=2).fit(Learns(), rows(), rows(64))
    assert not {"MP221", "MP207", "MP111"} & {one["code"] for one in page(report)[0]}


def test_steps_that_were_all_skipped_are_no_long_warm_up(make_trainer):
    report = PrecisionReport("report")
    trainer = make_trainer(callbacks=[LearningRateWarmup(20), report])
    trainer.fit(Clicks(weight=1e9), rows(), rows(64))
    codes = [one["code"] for one in page(report)[0]]
    assert codes[0] == "MP201"
    assert "MP220" not in codes


def test_a_warm_up_counts_real_steps(make_trainer):
    class Half(Clicks):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * (1e12 if batch_idx % 3 == 0 else 1.0)

    report = PrecisionReport("report")
    trainer = make_trainer(callbacks=[LearningRateWarmup(50), report])
    trainer.fit(Half(), rows(), rows(64))
    (told,) = [one for one in page(report)[0] if one["code"] == "MP220"]
    assert "after 40 of its 50 steps (20 more were skipped)" in told["problem"]


@pytest.mark.parametrize("there", [True, False])
def test_a_monitor_that_is_there_is_not_advised(there):
    cause = {"text": "5 of 10 steps were skipped", "cure": "`LossScaleMonitor` names the layers; keep them in float32"}
    report = {"step": 9, "change": 0.5, "findings": [cause]}
    told = fluctuation(
        {
            "fluctuation": {"monitor": "val_loss", "threshold": 0.15, "reports": [report]},
            "run": {"callbacks": [LossFluctuationMonitor.__name__] + [LossScaleMonitor.__name__] * there},
        }
    )
    assert told is not None
    assert ("LossScaleMonitor" in told[1]) != there
    assert "in float32" in told[1]


def test_a_watch_that_is_kept_is_not_advised(make_trainer):
    report, monitor = PrecisionReport("report"), LossFluctuationMonitor("val_loss", threshold=0.15)
    watches = [NonFiniteMonitor(), LossScaleMonitor(), NormGuard(), monitor]
    trainer = make_trainer(callbacks=[*watches, report], max_epochs=3, precision="32-true")
    trainer.fit(Clicks(), rows(nan="feature"), rows(64))
    found, _ = page(report)
    assert found[0]["code"] == "MP204"
    assert found[0]["severity"] == "error"
    assert "`NormGuard` put the running statistics back after " in found[0]["problem"]
    assert not any("watch with" in one["cure"] for one in found)
    assert monitor.reports


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("log_every", [1, 10])
def test_the_loss_is_that_of_the_training_step(make_trainer, parts, log_every):
    class Says(Clicks):
        losses: dict[int, float]

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            self.losses[batch_idx] = float(loss.detach())
            if batch_idx == 58:
                raise KeyError("planted")
            return loss

    model, report = Says(), PrecisionReport("report")
    model.losses = {}
    with pytest.raises(KeyError, match="planted"):
        make_trainer(
            callbacks=[report], accumulate_grad_batches=parts, log_every_n_steps=log_every, precision="32-true"
        ).fit(model, rows(), rows(64))
    values = page(report)[1]["metrics"]["train_loss"]["values"]
    assert values[0] == pytest.approx(model.losses[0], rel=1e-5)
    assert values[-1] == pytest.approx(model.losses[57], rel=1e-5)


def test_what_a_callback_raised_is_said_once(make_trainer):
    report = PrecisionReport("report")
    with pytest.raises(NumericError):
        make_trainer(callbacks=[LossScaleMonitor(on_collapse="raise"), report]).fit(
            Clicks(weight=1e9), rows(), rows(64)
        )
    found, _ = page(report)
    assert found[0]["code"] == "MP201"
    (ended,) = [one for one in found if one["code"] == "MP216"]
    assert (ended["severity"], ended["cure"]) == ("note", "as MP201 says")
    assert found[0]["problem"] not in ended["problem"]


@pytest.mark.parametrize("others", [[], [KeepInFP32]])
def test_an_exception_that_the_lint_knows_has_its_cure(make_trainer, others):
    class Series(Clicks):
        def __init__(self) -> None:
            super().__init__()
            self.series = nn.ModuleDict({"rnn": nn.LSTM(12, 12)})

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            ids, x, _ = batch
            return self.series["rnn"](torch.cat([self.table(ids), x], 1)[:, None])[0].float().square().mean()

    report = PrecisionReport("report")
    with pytest.raises(RuntimeError, match="LSTM"):
        make_trainer(callbacks=[report, *[kind() for kind in others]]).fit(Series(), rows(), rows(64))
    found, facts = page(report)
    assert found[0]["code"] == "MP109"
    assert "`series.rnn`" in found[0]["problem"]
    assert 'KeepInFP32(["series.rnn"])' in found[0]["cure"]
    assert found[0]["page"] == "findings/MP109.md"
    assert facts["exception"]["type"] == "RuntimeError"


def test_a_run_that_died_shows_its_loss_and_why(make_trainer):
    class Dies(Clicks):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == 20:
                raise KeyError("planted: second line is not shown\nnever")
            return super().training_step(batch, batch_idx)

    report = PrecisionReport("report")
    with pytest.raises(KeyError, match="planted"):
        make_trainer(callbacks=[report], log_every_n_steps=50, precision="32-true").fit(Dies(), rows(), rows(64))
    _, facts = page(report)
    assert facts["metrics"]["train_loss"]["steps"] == list(range(1, 21))
    assert report.path is not None
    shown = report.path.read_text()
    assert "Broke off: <code>KeyError</code>" in shown
    assert "planted" in shown
    assert "never\n" not in shown
    assert "No step was taken" not in shown


def test_a_record_of_an_earlier_version_is_read():
    state = RunRecord(bad_batch={"step": 1}).to_state()
    del state["growth"], state["loss_gone"]
    record = RunRecord.from_state(state)
    assert record.bad_batch == {"step": 1}
    assert record.growth is None
