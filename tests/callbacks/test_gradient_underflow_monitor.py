from __future__ import annotations

import copy
import csv
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import GradientUnderflowMonitor
from lightning_mp.errors import ConfigurationError, LightningMPWarning

ROWS = 512


class Clicks(pl.LightningModule):
    """A table and three layers on rare clicks; a mean over many rows makes small gradients."""

    def __init__(
        self, *, fused: bool = False, manual: bool = False, sparse: bool = False, norm: bool = False, how: str = ""
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 8, sparse=sparse)
        self.first, self.middle, self.last = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.dropout = nn.Dropout(0.1)
        self.fused, self.how = fused, how
        self.automatic_optimization = not manual
        self.inner = self.tower

    def tower(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(self.dropout(self.norm(self.first(x).float()).relu()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids, label = batch
        x = self.table(ids).flatten(1)
        h = checkpoint(self.inner, x, use_reentrant=self.how == "reentrant") if "entrant" in self.how else self.inner(x)
        loss = nn.functional.binary_cross_entropy_with_logits(self.last(h.relu()).float().squeeze(1), label)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self) -> Any:
        if self.table.sparse:
            return torch.optim.SGD(self.parameters(), 1e-2)
        return torch.optim.Adam(self.parameters(), 1e-3, fused=self.fused)


def clicks(batches: int, rows: int = ROWS) -> DataLoader[Any]:
    ids, label = torch.randint(300, (batches * rows, 4)), (torch.rand(batches * rows) < 0.02).float()
    return DataLoader(TensorDataset(ids, label), batch_size=rows)


def often(**settings: Any) -> GradientUnderflowMonitor:
    return GradientUnderflowMonitor(1, **{"probe_every_n_steps": 1, **settings})


def gradients(module: Clicks, batch: Any, scale: float) -> dict[str, torch.Tensor]:
    """Of one batch in float16, made by hand."""
    module = copy.deepcopy(module).train()
    module.automatic_optimization = True
    with torch.autocast("cpu", dtype=torch.float16):
        loss = module.training_step(batch, 0)
    (loss * scale).backward()
    return {name: p.grad.to_dense().double() / scale for name, p in module.named_parameters()}


@pytest.mark.parametrize(
    ("settings", "accumulate", "clip"),
    [
        pytest.param({}, 1, None, id="plain"),
        pytest.param({}, 1, 0.5, id="clip"),
        pytest.param({}, 3, None, id="accumulate"),
        pytest.param({"fused": True}, 1, None, id="fused"),
        pytest.param({"fused": True}, 3, None, id="fused-accumulate"),
        pytest.param({"manual": True}, 1, None, id="manual"),
        pytest.param({"sparse": True}, 1, None, id="sparse table"),
        pytest.param({"how": "non-reentrant"}, 1, None, id="checkpoint"),
    ],
)
def test_the_report_is_the_truth_in_every_set_up(make_trainer, settings, accumulate, clip):
    module, loader, scale = Clicks(**settings), clicks(accumulate), 2.0**-7
    module.dropout.p = 0.0
    low, high = (gradients(module, next(iter(loader)), s) for s in (scale / accumulate, 2.0**10))
    monitor = often()
    trainer = make_trainer(callbacks=[monitor], scale=scale, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, loader)
    warned = any("gradients underflow in float16" in str(warning.message) for warning in caught)

    def lost(names: list[str]) -> float:
        difference = math.sqrt(sum(float((low[name] - high[name]).square().sum()) for name in names))
        return difference / math.sqrt(sum(float(high[name].square().sum()) for name in names))

    report = monitor.report
    assert (report.scale, report.bits, report.zero_gradients) == (scale, 8, ())
    worst = max(layer.lost_norm for layer in report.layers)
    if worst <= 0.5:  # above, another step would be measured with twice the bits before a word is said
        assert warned == (worst > 0.01)
    assert report.lost_norm == pytest.approx(lost(list(low)), rel=0.05)
    assert {layer.layer for layer in report.layers} == {"table", "first", "middle", "last"}
    for layer in report.layers:
        names = [name for name in low if name.startswith(layer.layer)]
        assert layer.lost_norm == pytest.approx(lost(names), rel=0.05, abs=1e-3)
        flushed = sum(int(((low[name] == 0) & (high[name] != 0)).sum()) for name in names)
        assert layer.flushed_fraction == pytest.approx(
            flushed / sum(int((high[name] != 0).sum()) for name in names), abs=0.01
        )
    assert report.layers[0].layer == "table"
    assert report.layers[0].flushed_fraction > 0.03


@pytest.mark.parametrize("how", ["", "non-reentrant"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_probe_in_every_step_leaves_weights_buffers_and_random_numbers_bit_identical(make_trainer, fused, how):
    start, loader, results = Clicks(fused=fused, norm=True, how=how), clicks(4, 64), []
    for callbacks in ([], [often()]):
        module = copy.deepcopy(start)
        module.inner = module.tower
        torch.manual_seed(3)
        make_trainer(callbacks=callbacks, scale=1024.0).fit(module, loader)
        results.append({**module.state_dict(), "random": torch.get_rng_state()})
        if callbacks:
            assert callbacks[0].report.step == 3
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_the_advised_scale_cures(make_trainer):
    module, loader, monitor = Clicks(), clicks(3), often()
    with pytest.warns(LightningMPWarning) as caught:
        make_trainer(callbacks=[monitor], scale=2.0**-8).fit(copy.deepcopy(module), loader)
    (text,) = [str(warning.message) for warning in caught if warning.category is LightningMPWarning]
    cure = monitor.report.cure(0.01)
    assert "gradients underflow in float16 at loss scale 0.00390625, step 0: lost of their norm: `table`" in text
    assert "cures it: raise `init_scale` to that" in text
    again = often()
    make_trainer(callbacks=[again], scale=cure).fit(module, loader)  # a warning would be an error
    assert again.report.layers[0].lost_norm <= 0.01


def test_the_sample_is_of_the_pass_itself(make_trainer):
    module, loader, monitor = Clicks(), clicks(1), often(samples_per_tensor=10**6)
    module.dropout.p = 0.0
    wanted = {name: gradient * 16 for name, gradient in gradients(module, next(iter(loader)), 16.0).items()}
    make_trainer(callbacks=[monitor], scale=16.0).fit(module, loader)
    histogram = monitor.histogram
    assert histogram.from_float16 == set(wanted) - {"table.weight", "last.bias"}
    for name, gradient in wanted.items():
        assert histogram.largest[name] == float(gradient.abs().max())
        assert sum(histogram.counts[name]) == pytest.approx(gradient.numel(), abs=2)
        assert histogram.counts[name][0] == int((gradient == 0).sum())
    values = torch.cat([wanted[name].flatten() for name in histogram.from_float16])
    values = values[values != 0].abs()
    assert histogram.subnormal_fraction == float((values < 2.0**-14).double().mean())
    assert histogram.headroom_bits == pytest.approx(math.log2(65504 / float(values.max())))


def test_a_bias_before_a_normalisation_is_no_alarm(make_trainer):
    monitor = often()
    make_trainer(callbacks=[monitor], scale=256.0).fit(Clicks(norm=True), clicks(3))
    assert monitor.report.zero_gradients == ("first.bias",)
    assert monitor.report.layers[0].lost_norm < 1e-3
    assert monitor.report.lost_norm < 1e-3


@pytest.mark.parametrize(("scale", "fewest", "most"), [(2.0**9, 8, 8), (2.0**15, 1, 7), (2.0**18.5, -2, 1)])
def test_near_its_ceiling_a_scale_is_judged_by_fewer_bits(make_trainer, scale, fewest, most):
    monitor, module = often(probe_bits=8), Clicks()
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6)
    make_trainer(callbacks=[monitor], scaler=scaler).fit(module, clicks(4))
    assert fewest <= monitor.report.bits <= most
    assert monitor.report.lost_norm < 1e-3
    assert monitor.histogram.headroom_bits is None or monitor.histogram.headroom_bits < 17


def test_a_scale_of_nearly_nothing_is_judged_by_more_bits_a_step_later(make_trainer):
    monitor = GradientUnderflowMonitor(2, probe_every_n_steps=100)
    with pytest.warns(LightningMPWarning, match="is a first step"):
        make_trainer(callbacks=[monitor], scale=2.0**-14).fit(Clicks(), clicks(6))
    assert monitor.report.bits > 8
    assert monitor.report.step > 1
    assert monitor.report.layers[0].lost_norm > 0.9


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_a_compiled_graph_is_not_probed_and_said_once(make_trainer, backend):
    module, monitor = Clicks(), often()
    module.inner = torch.compile(module.tower, backend=backend)
    with pytest.warns(LightningMPWarning, match="leaves its probe out: the graph is compiled") as caught:
        make_trainer(callbacks=[monitor], scale=1.0).fit(module, clicks(3, 64))
    assert len([warning for warning in caught if warning.category is LightningMPWarning]) == 1
    assert monitor.report is None
    assert monitor.histogram.subnormal_fraction > 0


def test_a_reentrant_checkpoint_is_not_probed_and_said_once(make_trainer):
    module, monitor = Clicks(how="reentrant"), often()
    with pytest.warns(LightningMPWarning, match="re-entrant checkpoints; with `use_reentrant=False`") as caught:
        make_trainer(callbacks=[monitor]).fit(module, clicks(3, 64))
    assert len([warning for warning in caught if warning.category is LightningMPWarning]) == 1
    assert monitor.report is None


def test_a_second_pass_that_fails_is_said_once_and_the_run_goes_on(make_trainer):
    real = []

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if not real:
                raise RuntimeError("this pass runs once")
            return gradient

    class Real(pl.Callback):
        def on_before_backward(self, *_: Any) -> None:
            real.append(True)

    module, monitor = Clicks(), often()
    tower = module.tower
    module.inner = lambda x: Once.apply(tower(x))
    with pytest.warns(LightningMPWarning, match=r"a second backward pass failed \(this pass runs once\)") as caught:
        make_trainer(callbacks=[monitor, Real()]).fit(module, clicks(3, 64))
    assert len([warning for warning in caught if warning.category is LightningMPWarning]) == 1


def test_steps_measured_are_those_asked_for_and_logged_once(make_trainer):
    monitor, log = GradientUnderflowMonitor(2, probe_every_n_steps=100, top_k=2), CSVLogger(".")
    make_trainer(callbacks=[monitor], scale=256.0, log_every_n_steps=3, logger=log).fit(Clicks(), clicks(9, 64))
    rows = {
        int(row["step"]): {key for key, value in row.items() if key.startswith("underflow") and value}
        for row in csv.DictReader(Path(log.log_dir, "metrics.csv").read_text().splitlines())
    }
    samples = {"underflow/subnormal_fraction", "underflow/headroom_bits"}
    probe = {"underflow/lost_norm", "underflow/flushed_fraction"}
    assert {step for step, keys in rows.items() if keys} == {1, 3, 5, 7}
    assert {key for key in rows[1] if key.count("/") == 1} == samples | probe
    assert len([key for key in rows[1] if key.count("/") == 2]) == 2
    assert rows[3] == rows[5] == rows[7] == samples


def test_a_step_that_overflows_is_measured_later(make_trainer):
    class Bad(Clicks):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * (1e12 if batch_idx < 2 else 1.0)

    monitor = often()
    make_trainer(callbacks=[monitor]).fit(Bad(), clicks(4, 64))
    assert monitor.report.step == 3
    assert monitor.report.scale == 256.0


def test_a_run_without_a_scaler_leaves_it_idle_with_one_message(make_trainer, caplog):
    monitor = often()
    trainer = make_trainer(callbacks=[monitor], precision="bf16-mixed")
    with caplog.at_level(logging.INFO):
        trainer.fit(Clicks(), clicks(2, 64))
    assert sum("found no gradient scaler: the run uses precision `bf16-mixed`" in text for text in caplog.messages) == 1
    assert monitor.histogram is None
    assert not trainer.callback_metrics


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every_n_steps": 0}, "`every_n_steps` must be at least 1, got 0"),
        ({"probe_bits": -1}, "`probe_bits` must be at least 1, got -1"),
        ({"lost_norm_threshold": 1.0}, "`lost_norm_threshold` must lie in (0, 1), got 1.0"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        GradientUnderflowMonitor(**arguments)
    assert text in str(error.value)
