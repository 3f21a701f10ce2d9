from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from lightning_mp import GradientClipping, LossScaleMonitor
from lightning_mp.errors import ConfigurationError, LightningMPWarning, NumericError


class Oracle(pl.Callback):
    """Which optimizer steps changed no parameter, found by comparing copies of them all: slow and plain."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bool]] = []
        self._before: list[tuple[int, list[torch.nn.Parameter], list[torch.Tensor]]] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self._compare()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        position = trainer.optimizers.index(optimizer)
        self._before.append((position, parameters, [p.detach().clone() for p in parameters]))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._compare()

    def _compare(self) -> None:
        for position, parameters, before in self._before:
            changed = any(not torch.equal(now, old) for now, old in zip(parameters, before, strict=True))
            self.taken.append((position, changed))
        self._before.clear()

    @property
    def skipped(self) -> list[tuple[int, int]]:
        """(number of the attempt, position of the optimizer) of the steps that changed nothing."""
        return [(step, position) for step, (position, taken) in enumerate(self.taken) if not taken]


def bad_batches(count: int) -> tuple[set[int], set[int]]:
    """Fresh random batches that overflow forward and backward."""
    chosen = random.sample(range(count), 5)
    return set(chosen[:3]), set(chosen[3:])


AUTOMATIC = [
    pytest.param(False, accumulate, clip, id=f"plain-accumulate{accumulate}-{'clip' if clip else 'noclip'}")
    for accumulate in (1, 3)
    for clip in (None, 0.5)
] + [pytest.param(True, accumulate, None, id=f"fused-accumulate{accumulate}") for accumulate in (1, 3)]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "aot_eager"])
@pytest.mark.parametrize(("fused", "accumulate", "clip"), AUTOMATIC)
def test_skips_equal_the_oracle_in_automatic_optimization(
    toy, make_trainer, batches, fused, accumulate, clip, compiled
):
    bad, steep = bad_batches(12)
    module = toy(fused=fused, bad=bad, steep=steep)
    if compiled:
        module.forward = torch.compile(module.forward, backend="aot_eager")
    monitor, oracle = LossScaleMonitor(), Oracle()
    make_trainer(
        callbacks=[monitor, oracle], accumulate_grad_batches=accumulate, gradient_clip_val=clip, log_every_n_steps=4
    ).fit(module, batches(12))
    assert [(event.step, event.optimizer) for event in monitor.events] == oracle.skipped
    assert monitor.history.attempts == len(oracle.taken) == -(-12 // accumulate)
    assert monitor.history.skipped == len(oracle.skipped) > 0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "aot_eager"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("optimizers", [1, 2])
@pytest.mark.parametrize("clip", [False, True], ids=["noclip", "our clip"])
def test_skips_equal_the_oracle_in_manual_optimization(toy, make_trainer, batches, clip, fused, optimizers, compiled):
    bad, steep = bad_batches(12)
    module = toy(fused=fused, optimizers=optimizers, manual=True, bad=bad, steep=steep)
    if compiled:
        module.forward = torch.compile(module.forward, backend="aot_eager")
    monitor, oracle = LossScaleMonitor(), Oracle()
    clipping = [GradientClipping(0.01)] if clip else []
    make_trainer(callbacks=[*clipping, monitor, oracle], log_every_n_steps=5).fit(module, batches(12))
    assert [(event.step, event.optimizer) for event in monitor.events] == oracle.skipped
    assert monitor.history.attempts == len(oracle.taken) == 12 * optimizers
    if clip:
        assert clipping[0].steps == clipping[0].clipped_steps == 12 * optimizers - monitor.history.skipped


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")  # torch imports its own
def test_skips_equal_the_oracle_with_inductor(toy, make_trainer, batches):
    bad, steep = bad_batches(8)
    module = toy(bad=bad, steep=steep)
    module.forward = torch.compile(module.forward, options={"compile_threads": 1})
    monitor, oracle = LossScaleMonitor(), Oracle()
    make_trainer(callbacks=[monitor, oracle]).fit(module, batches(8))
    assert [(event.step, event.optimizer) for event in monitor.events] == oracle.skipped


def test_clipping_a_fused_optimizer_gives_lightnings_error(toy, make_trainer, batches):
    trainer = make_trainer(callbacks=[LossScaleMonitor()], gradient_clip_val=0.5)
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        trainer.fit(toy(fused=True), batches(2))


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")  # said once a process, whichever test is first
def test_a_training_step_that_gives_none_is_no_skipped_step(toy, make_trainer, batches):
    monitor = LossScaleMonitor()
    make_trainer(callbacks=[monitor]).fit(toy(none={1, 4}, bad={2}), batches(6))
    assert (monitor.history.attempts, monitor.history.skipped) == (4, 1)


def test_the_copy_of_the_scale_follows_the_scaler(toy, make_trainer, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3)
    monitor = LossScaleMonitor()
    seen: list[tuple[float, float]] = []

    class Compare(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            seen.append((monitor.history.scale, trainer.scaler.get_scale()))

    make_trainer(callbacks=[monitor, Compare()], scaler=scaler, log_every_n_steps=1000).fit(
        toy(bad={9, 20}), batches(30)
    )
    assert all(copy_ == true for copy_, true in seen)
    assert len({true for _, true in seen}) > 3


def test_a_scaler_set_anew_in_the_middle_is_followed_from_the_next_logging_step_on(toy, make_trainer, batches):
    monitor, seen = LossScaleMonitor(), []

    class Change(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 3:
                trainer.scaler.set_growth_interval(7)
                trainer.scaler.set_growth_factor(4.0)
            seen.append((batch_idx, monitor.history.scale, trainer.scaler.get_scale()))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)
    make_trainer(callbacks=[monitor, Change()], scaler=scaler, log_every_n_steps=6).fit(toy(bad={13}), batches(24))
    assert all(copy_ == true for number, copy_, true in seen if number >= 5)
    assert len({true for _, _, true in seen}) == 4


def test_a_table_with_a_bad_row_is_named_at_the_first_skip(make_trainer):
    class Table(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.tables, self.last = nn.ModuleList([nn.Embedding(6, 4), nn.Embedding(6, 4)]), nn.Linear(8, 1)

        def training_step(self, batch, batch_idx):
            return self.last(torch.cat([table(batch[0]) for table in self.tables], 1)).float().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    module, monitor = Table(), LossScaleMonitor()
    with torch.no_grad():
        module.tables[1].weight[4, 2] = float("nan")
    ids = torch.tensor([0, 1, 2, 3, 4, 5])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids), batch_size=2)
    make_trainer(callbacks=[monitor]).fit(module, loader)
    (event,) = monitor.events
    assert (event.step, event.origin, event.layers[0]) == (2, "forward", "tables.1")


@pytest.mark.parametrize("fused", [False, True])
def test_an_event_names_scale_origin_and_layers_of_a_backward_overflow(toy, make_trainer, batches, fused):
    monitor = LossScaleMonitor()
    make_trainer(callbacks=[monitor]).fit(toy(fused=fused, steep={3}), batches(6))
    (event,) = monitor.events
    assert (event.step, event.scale, event.origin) == (3, 1024.0, "backward")
    assert event.layers[0] == "last"  # where the backward pass begins
    assert set(event.layers) <= {"first", "middle", "last"}


def test_layers_stand_in_the_order_of_the_backward_pass_not_of_registration(make_trainer, batches):
    class Reversed(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.out, self.hidden, self.inp = nn.Linear(8, 1), nn.Linear(8, 8), nn.Linear(4, 8)

        def training_step(self, batch, batch_idx):
            y = self.out(torch.tanh(self.hidden(torch.tanh(self.inp(batch[0])))))
            return y.float().mean() * (1e9 if batch_idx == 2 else 1.0)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    monitor = LossScaleMonitor()
    make_trainer(callbacks=[monitor]).fit(Reversed(), batches(4))
    assert monitor.events[0].layers == ("out", "hidden", "inp")


def test_a_non_finite_batch_is_named(toy, make_trainer, batches):
    loader = batches(6)
    loader.dataset.tensors[0][9] = float("nan")
    monitor = LossScaleMonitor()
    make_trainer(callbacks=[monitor]).fit(toy(), loader)
    (event,) = monitor.events
    assert (event.step, event.origin) == (2, "forward")
    assert event.layers[:2] == ("batch[0]", "first")


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_the_layer_of_a_single_forward_overflow_is_named(make_trainer, batches, layer):
    class OneNetwork(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)
            )
            self.calls = 0

        def training_step(self, batch, batch_idx):
            self.calls += 1
            factor = 1e7 if batch_idx == 3 else 1.0
            getattr(self.net, layer).weight.data.mul_(factor)
            return self.net(batch[0]).float().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    module, monitor = OneNetwork(), LossScaleMonitor(patience=99)
    make_trainer(callbacks=[monitor]).fit(module, batches(4))
    (event,) = monitor.events
    assert (event.step, event.origin, event.layers[0]) == (3, "forward", f"net.{layer}")
    assert module.calls == 4
    assert module.net[1].num_batches_tracked == 4


@pytest.mark.parametrize("fused", [False, True])
def test_the_layer_of_a_repeated_forward_overflow_is_named(toy, make_trainer, batches, fused):
    module = toy(fused=fused, bad={2, 3, 7})
    monitor = LossScaleMonitor()
    make_trainer(callbacks=[monitor]).fit(module, batches(9))
    assert [event.origin for event in monitor.events] == ["forward"] * 3
    assert [event.layers[0] for event in monitor.events] == ["first"] * 3
    assert not any(layer._forward_hooks for layer in module.modules())


def test_a_nan_spread_by_clipping_is_not_taken_for_the_cause(toy, make_trainer, batches):
    class OneBadLayer(toy):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if batch_idx in {1, 2}:  # of all gradients only that of `middle` becomes NaN
                self.middle.weight.register_hook(lambda gradient: gradient * float("nan"))
            return loss

    module = OneBadLayer()
    monitor = LossScaleMonitor()
    make_trainer(callbacks=[monitor], gradient_clip_val=0.5).fit(module, batches(4))
    assert [event.layers for event in monitor.events][:2] == [(), ("middle",)]


def test_name_layers_false_looks_for_none(toy, make_trainer, batches):
    monitor = LossScaleMonitor(name_layers=False)
    make_trainer(callbacks=[monitor]).fit(toy(steep={1}), batches(3))
    assert monitor.events[0].layers == ()


def test_a_model_that_always_overflows_collapses_by_patience(toy, make_trainer, batches):
    with pytest.warns(LightningMPWarning, match=r"3 optimizer steps in a row were skipped") as caught:
        make_trainer(callbacks=[LossScaleMonitor(patience=3)]).fit(toy(bad=range(99)), batches(8))
    (text,) = [str(warning.message) for warning in caught if warning.category is LightningMPWarning]
    assert "began in the forward pass in `first`" in text
    assert "hint: no loss scale cures an overflow of the forward pass" in text


def test_on_collapse_stop_ends_the_fit(toy, make_trainer, batches):
    monitor = LossScaleMonitor(patience=3, on_collapse="stop")
    trainer = make_trainer(callbacks=[monitor])
    with pytest.warns(LightningMPWarning, match="3 optimizer steps in a row"):
        trainer.fit(toy(bad=range(99)), batches(8))
    assert trainer.global_step == 3


def test_on_collapse_raise_names_minimum_and_cause_and_leaves_no_hook(toy, make_trainer, batches):
    monitor = LossScaleMonitor(min_scale=200.0, on_collapse="raise")
    module = toy(bad=range(99))
    trainer = make_trainer(callbacks=[monitor])
    with pytest.raises(NumericError, match=r"the loss scale fell to 128, below the minimum of 200; the last overflow"):
        trainer.fit(module, batches(8))
    assert not trainer.optimizers[0]._optimizer_step_pre_hooks
    assert not any(layer._forward_hooks for layer in module.modules())


def test_a_scale_of_zero_is_called_stuck_for_good(toy, make_trainer, batches):
    monitor = LossScaleMonitor(on_collapse="raise")
    with pytest.raises(NumericError, match=r"the loss scale is 0 and stuck there for good: every gradient is lost"):
        make_trainer(callbacks=[monitor], scale=0.0).fit(toy(), batches(3))


def test_a_scale_that_can_only_fall_is_predicted(toy, make_trainer, batches):
    monitor = LossScaleMonitor(min_scale=100.0)
    with pytest.warns(
        LightningMPWarning, match=r"the loss scale can only fall: .* are skipped.*goes below 100 in about"
    ):
        make_trainer(callbacks=[monitor]).fit(toy(bad={4, 9, 14}), batches(40))
    assert monitor.history.scale == 128.0


def test_a_run_without_a_scaler_leaves_it_idle_with_one_message(toy, make_trainer, batches, caplog):
    monitor = LossScaleMonitor()
    trainer = make_trainer(callbacks=[monitor], precision="32-true", max_epochs=2)
    with caplog.at_level(logging.INFO):
        trainer.fit(toy(), batches(3))
    assert sum("found no gradient scaler: the run uses precision `32-true`" in text for text in caplog.messages) == 1
    assert not trainer.callback_metrics


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"min_scale": 0.0}, "`min_scale` must be positive, got 0.0"),
        ({"min_scale": float("nan")}, "`min_scale` must be positive, got nan"),
        ({"patience": 0}, "`patience` must be at least 1, got 0"),
        ({"on_collapse": "panic"}, "`on_collapse` must be `warn`, `stop` or `raise`, got 'panic'"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        LossScaleMonitor(**arguments)
    assert text in str(error.value)


def test_counts_and_events_go_on_after_a_resume(toy, make_trainer, batches):
    loader = batches(6)
    first = LossScaleMonitor()
    trainer = make_trainer(callbacks=[first])
    module = toy(bad={1, 5})
    trainer.fit(module, loader)
    trainer.save_checkpoint("run.ckpt")
    again = LossScaleMonitor()
    resumed = make_trainer(callbacks=[again], max_epochs=2)
    resumed.fit(toy(bad={0}), loader, ckpt_path="run.ckpt", weights_only=True)
    assert (again.history.attempts, again.history.skipped) == (12, 3)
    assert [event.step for event in again.events] == [1, 5, 6]
    assert again.events[0] == first.events[0]
    assert again.history.scale == resumed.scaler.get_scale()


def test_a_copy_made_during_a_fit_does_not_drag_the_trainer_along(toy, make_trainer, batches):
    monitor = LossScaleMonitor()
    sizes: list[int] = []

    class Copy(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            sizes.append(len(pickle.dumps(monitor)))
            assert copy.deepcopy(monitor).history == monitor.history

    make_trainer(callbacks=[monitor, Copy()]).fit(toy(bad={1}), batches(3))
    assert max(sizes) < 2000


def test_skips_equal_the_oracle_in_two_processes(tmp_path):
    script = Path(__file__).with_name("two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=240, capture_output=True)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    assert len(ranks[0]["cells"]) == 2 * 10
    for result in ranks[0]["cells"]:
        optimizers, accumulate = result["optimizers"], result["accumulate"]
        windows = [set(range(first, min(first + accumulate, 11))) for first in range(0, 11, accumulate)]
        bad = [number for number, window in enumerate(windows) if window & {2, 5, 6}]
        wanted = [[number * optimizers + n, n] for number in bad for n in range(optimizers)]
        assert [number for number, taken in enumerate(result["taken"]) if not taken] == [step for step, _ in wanted]
        assert len(result["taken"]) == len(windows) * optimizers
        assert result["skipped"] == wanted
        assert result["scale"] == result["true_scale"] == 1024.0 / 2 ** len(wanted)
        assert result["verified"] == ({} if result["compiled"] else {"first": True})
        taken = len(windows) - len(bad)
        assert result["warmed"] == [taken] * optimizers
        assert result["finite"] == (taken * optimizers if result["our_clip"] else 0)
        assert result["finite"] >= result["clipped"]
        assert result["finite_buffers"]
        # The loss that was not finite may be the other process's.
        assert result["origins"] == ["forward"] * len(wanted)
    for result in ranks[0]["fluctuation"]:
        assert result["counts"] == [22, 6]
        assert result["reports"] == [[1, 1.0, ["skipped_steps"]]]
