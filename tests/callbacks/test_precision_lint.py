from __future__ import annotations

import warnings

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from lightning_mp import KeepInFP32, LearningRateWarmup, PrecisionLint
from lightning_mp.errors import ConfigurationError, LightningMPWarning, NumericError


class Sums(pl.LightningModule):
    def __init__(self, lr=1e-4, eps=1e-4):
        super().__init__()
        self.layer, self.norm, self.lr, self.eps = nn.Linear(4, 1), nn.BatchNorm1d(4), lr, eps

    def forward(self, x):
        return self.layer(self.norm(x.float()) / (x.norm() + self.eps))

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self(batch[0]).float().squeeze(1), batch[1], reduction="sum")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)


def test_findings_are_told_in_one_warning_with_place_and_cure(make_trainer, batches):
    linter = PrecisionLint()
    with pytest.warns(LightningMPWarning, match=r"MP104 .*test_precision_lint\.py:\d+: .*\n\nhint: use `reduction"):
        make_trainer(callbacks=[linter]).fit(Sums(), batches(2))
    assert [(one.code, one.severity) for one in linter.findings] == [("MP104", "warning")]


def test_the_learning_rate_is_judged_before_the_first_batch(make_trainer, batches):
    linter = PrecisionLint(ignore=["MP104"])
    with pytest.warns(LightningMPWarning, match=r"MP111 Adam: a learning rate of 0.01 is above 0.0005"):
        make_trainer(callbacks=[linter]).fit(Sums(lr=1e-2), batches(2))


@pytest.mark.parametrize(("limit", "cures"), [(None, ["lower the peak to 5e-4 or less"]), (2e-4, [])])
def test_a_warm_up_that_is_there_is_not_advised(make_trainer, batches, limit, cures):
    linter = PrecisionLint(ignore=["MP104"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningMPWarning)
        make_trainer(callbacks=[linter, LearningRateWarmup(2, max_lr=limit)]).fit(Sums(lr=1e-2), batches(2))
    assert [one.cure for one in linter.findings] == cures


def test_it_may_keep_the_fit_from_beginning(make_trainer, batches, toy):
    with pytest.raises(NumericError, match="MP104"):
        make_trainer(callbacks=[PrecisionLint(raise_on="warning")]).fit(Sums(), batches(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningMPWarning)
        make_trainer(callbacks=[PrecisionLint(raise_on="error")]).fit(Sums(), batches(2))
        make_trainer(callbacks=[PrecisionLint(raise_on="error", ignore=["MP111"])]).fit(toy(), batches(2))


@pytest.mark.parametrize("kept", [[], ["net*"], ["net.lstm"]])
def test_an_lstm_that_is_kept_in_float32_is_no_finding(make_trainer, batches, kept):
    class Series(Sums):
        def __init__(self):
            super().__init__()
            self.net = nn.ModuleDict({"lstm": nn.LSTM(4, 4)})

    linter = PrecisionLint(ignore=["MP104"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LightningMPWarning)
        callbacks = [linter, *([KeepInFP32(kept, verify=False)] if kept else [])]
        make_trainer(callbacks=callbacks, max_epochs=0).fit(Series(), batches(2))
    assert [one.place for one in linter.findings] == ([] if kept else ["net.lstm"])


def test_float32_has_no_findings(make_trainer, batches):
    linter = PrecisionLint(raise_on="warning")
    make_trainer(callbacks=[linter], precision="32-true").fit(Sums(lr=1.0), batches(2))
    assert linter.findings == ()


def test_the_example_input_runs_once_and_leaves_no_trace(make_trainer, batches):
    class Packed(Sums):
        def __init__(self):
            super().__init__()
            self.rows, self.runs = nn.Embedding(9, 4), []
            self.example_input_array = torch.ones(4, 4)

        def forward(self, x):
            self.runs.append(self.norm.running_mean.clone())
            ids = x.abs().to(torch.int64).clamp(max=8)
            return self.layer(self.norm(self.rows(ids).float().mean(1)))

    loader, states = batches(2), []
    for callbacks in ([], [PrecisionLint(ignore=["MP104"])]):
        module = Packed()
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            make_trainer(callbacks=callbacks, max_epochs=0).fit(module, loader)
        assert len(module.runs) == len(callbacks)
        assert any("MP105" in str(entry.message) for entry in said) == bool(callbacks)
        assert not module.norm.running_mean.any()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("settings", [{"ignore": ["MP999"]}, {"raise_on": "always"}])
def test_wrong_arguments(settings):
    with pytest.raises(ConfigurationError):
        PrecisionLint(**settings)
