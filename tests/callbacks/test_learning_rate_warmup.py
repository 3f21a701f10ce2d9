from __future__ import annotations

import copy

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.optim import lr_scheduler as schedules

from lightning_mp import LearningRateWarmup
from lightning_mp.errors import ConfigurationError

WARMUP, BATCHES, EPOCHS, PEAKS = 6, 12, 2, (0.02, 0.005)
# Lightning steps a schedule after a skipped step too; torch warns of that when it is the first.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step\\(\\)` before:UserWarning")

SCHEDULES = {
    "none": (None, "step"),
    "StepLR": (lambda o: schedules.StepLR(o, 5, 0.5), "step"),
    "ExponentialLR": (lambda o: schedules.ExponentialLR(o, 0.9), "epoch"),
    "CosineAnnealingLR": (lambda o: schedules.CosineAnnealingLR(o, 30), "step"),
    "CosineAnnealingWarmRestarts": (lambda o: schedules.CosineAnnealingWarmRestarts(o, 7), "step"),
    "LambdaLR": (lambda o: schedules.LambdaLR(o, lambda step: 1 / (1 + step) ** 0.5), "step"),
    "OneCycleLR": (lambda o: schedules.OneCycleLR(o, list(PEAKS[: len(o.param_groups)]), 24), "step"),
    "ReduceLROnPlateau": (lambda o: schedules.ReduceLROnPlateau(o, patience=0, threshold=10.0), "epoch"),
}


class Recording(torch.optim.SGD):
    """Keeps the learning rates that its steps were really taken with."""

    def __init__(self, *args, **kwargs):
        self.used: list[list[float]] = []
        super().__init__(*args, **kwargs)

    def step(self, closure=None):
        result = super().step(closure)
        self.used.append([float(group["lr"]) for group in self.param_groups])
        return result


class Scheduled(pl.LightningModule):
    def __init__(self, schedule: str, groups: int, bad: set[int]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.schedule, self.groups, self.bad = schedule, groups, bad
        self.batches_seen = -1
        self.read: list[float] = []

    def training_step(self, batch, batch_idx):
        self.batches_seen += 1
        x, y = batch
        if self.batches_seen in self.bad:
            x = x * 1e6  # overflows in float16
        self.log("train_loss", 1.0)
        return nn.functional.l1_loss(self.last(torch.tanh(self.first(x))).squeeze(1).float(), y)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.read.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self):
        parts = [self.first.parameters(), self.last.parameters()] if self.groups == 2 else [self.parameters()]
        groups = [{"params": list(part), "lr": peak} for part, peak in zip(parts, PEAKS, strict=False)]
        optimizer = Recording(groups, lr=PEAKS[0])
        make, interval = SCHEDULES[self.schedule]
        if make is None:
            return optimizer
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": make(optimizer), "interval": interval, "monitor": "train_loss"},
        }


def windows(items: range, size: int) -> list[range]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def oracle(schedule: str, groups: int, accumulate: int, bad: set[int]) -> tuple[list[list[float]], list[float]]:
    """(learning rates of the steps taken, those of the schedule in the end), by a plain loop without a Trainer."""
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": p} for p in PEAKS[:groups]])
    make, interval = SCHEDULES[schedule]
    scheduler = make and make(optimizer)
    taken, used, batch = 0, [], 0
    for _ in range(EPOCHS):
        for window in windows(range(BATCHES), accumulate):
            numbers = {batch + place for place in range(len(window))}
            batch += len(window)
            factor = min(1.0, 0.02 + 0.98 * taken / WARMUP)
            if not numbers & bad:
                used.append([group["lr"] * factor for group in optimizer.param_groups])
                taken += 1
                optimizer.step()
            if scheduler and interval == "step":
                scheduler.step()
        if scheduler and interval == "epoch":
            scheduler.step(*([1.0] if schedule == "ReduceLROnPlateau" else []))
    return used, [group["lr"] for group in optimizer.param_groups]


LONG = 18  # steps of a warm-up that reaches into the second epoch


class UsualPattern(pl.Callback):
    """What the Trainer's documentation and issues show: write the warmed value over the schedule's."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step <= LONG:
            for group, peak in zip(trainer.optimizers[0].param_groups, PEAKS, strict=False):
                group["lr"] = peak * (0.02 + 0.98 * trainer.global_step / LONG)


@pytest.mark.parametrize("half", [True, False], ids=["fp16", "fp32"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_times_schedule_is_exact_in_every_cell(make_trainer, batches, schedule, groups, accumulate, half):
    bad = {0, 4, 9} if half else set()
    module = Scheduled(schedule, groups, bad)
    callback = LearningRateWarmup(WARMUP)
    trainer = make_trainer(
        callbacks=[callback],
        max_epochs=EPOCHS,
        accumulate_grad_batches=accumulate,
        **({} if half else {"precision": "32-true"}),
    )
    trainer.fit(module, batches(BATCHES))
    used, final = oracle(schedule, groups, accumulate, bad)
    optimizer = trainer.optimizers[0]
    assert len(optimizer.used) == len(used) > WARMUP - 2
    for mine, wanted in zip(optimizer.used, used, strict=True):
        assert mine == pytest.approx(wanted, rel=1e-12)
    assert [group["lr"] for group in optimizer.param_groups] == final  # as if there had been no warm-up
    assert callback.steps == [min(WARMUP, len(used))]


def final_lr(trainer) -> float:
    return trainer.optimizers[0].param_groups[0]["lr"]


def test_the_usual_pattern_is_wrong_beside_every_schedule(make_trainer, batches):
    worst, last = {}, {}
    for schedule in SCHEDULES:
        used, final = {}, {}
        for callback in (UsualPattern(), LearningRateWarmup(LONG)):
            trainer = make_trainer(callbacks=[callback], max_epochs=EPOCHS, precision="32-true")
            trainer.fit(Scheduled(schedule, 1, set()), batches(BATCHES))
            kind = type(callback).__name__
            used[kind] = [lr for (lr,) in trainer.optimizers[0].used]
            final[kind] = final_lr(trainer)
        exact, usual = used["LearningRateWarmup"], used["UsualPattern"]
        worst[schedule] = max(max(a / b, b / a) for a, b in zip(usual, exact, strict=True))
        last[schedule] = final["UsualPattern"] / final["LearningRateWarmup"]
        assert final["LearningRateWarmup"] == oracle(schedule, 1, 1, set())[1][0]
    assert worst.pop("none") == pytest.approx(1.0)
    assert min(worst.values()) > 1.05
    # For good, where a schedule computes its next value from the one it finds.
    assert last["StepLR"] == pytest.approx(8.0)
    assert last["ReduceLROnPlateau"] == pytest.approx(10.0)
    assert min(last["ExponentialLR"], last["CosineAnnealingLR"]) > 1.1
    for closed in ("LambdaLR", "OneCycleLR", "CosineAnnealingWarmRestarts"):
        assert last[closed] == pytest.approx(1.0)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_skipped_steps_do_not_count(toy, make_trainer, batches, fused):
    used: list[float] = []

    class Watch(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            trainer.optimizers[0].register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))

    callback = LearningRateWarmup(4, start_factor=0.5)
    make_trainer(callbacks=[callback, Watch()]).fit(toy(fused=fused, bad={1, 2, 5}), batches(9))
    lrs = [1e-2 * factor for factor in (0.5, 0.625, 0.75, 0.875, 1.0, 1.0)]
    if fused:  # called for skipped steps too, with the rate that the next one taken has again
        lrs = [lrs[place] for place in (0, 1, 1, 1, 2, 3, 3, 4, 5)]
    assert used == pytest.approx(lrs)
    assert callback.steps == [4]


def test_manual_optimization_with_two_optimizers_counts_each(toy, make_trainer, batches):
    class OneIdle(toy):
        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            loss = self(batch[0]).square().mean()
            first.zero_grad()
            second.zero_grad()
            self.manual_backward(loss)
            first.step()
            if batch_idx % 3 == 0:
                second.step()

    callback = LearningRateWarmup(100)
    make_trainer(callbacks=[callback], precision="32-true").fit(OneIdle(manual=True, optimizers=2), batches(9))
    assert callback.steps == [9, 3]


def test_a_schedule_stepped_in_manual_optimization_reads_its_own_value(make_trainer, batches):
    class Manual(Scheduled):
        def __init__(self):
            super().__init__("StepLR", 1, set())
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()
            self.lr_schedulers().step()

        def configure_optimizers(self):
            optimizer = Recording(self.parameters(), lr=PEAKS[0])
            return [optimizer], [schedules.StepLR(optimizer, 5, 0.5)]

    trainer = make_trainer(callbacks=[LearningRateWarmup(WARMUP)], max_epochs=EPOCHS)
    trainer.fit(Manual(), batches(BATCHES))
    used, final = oracle("StepLR", 1, 1, set())
    assert [lr for (lr,) in trainer.optimizers[0].used] == pytest.approx([lr for (lr,) in used])
    assert final_lr(trainer) == final[0]


def test_the_brief_schedule(make_trainer, batches):
    """1e-6 to 5e-5 in a straight line, then 0.9 of it every third epoch, never above the cap."""
    callback = LearningRateWarmup(20, start_lr=1e-6, decay_factor=0.9, decay_every_n_epochs=3, max_lr=5e-5)
    module = Scheduled("none", 1, set())
    module.configure_optimizers = lambda: Recording(module.parameters(), lr=5e-5)
    trainer = make_trainer(callbacks=[callback], max_epochs=8, precision="32-true")
    trainer.fit(module, batches(10))
    used = [lr for (lr,) in trainer.optimizers[0].used]
    wanted = [
        1e-6 + (5e-5 - 1e-6) * step / 20 if step < 20 else 5e-5 * 0.9 ** ((step // 10) // 3) for step in range(80)
    ]
    assert used == pytest.approx(wanted, rel=1e-9)
    assert used[60] == pytest.approx(4.05e-5)


def test_max_lr_caps_every_step(make_trainer, batches):
    trainer = make_trainer(callbacks=[LearningRateWarmup(2, max_lr=0.004)], precision="32-true")
    trainer.fit(Scheduled("none", 2, set()), batches(6))
    assert trainer.optimizers[0].used[-1] == [0.004, 0.004]
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == list(PEAKS)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_resumed_run_is_bit_equal_to_an_uninterrupted_one(toy, make_trainer, batches, fused):
    loader, start = batches(6), toy(fused=fused, bad={1})
    ends = []
    for interrupted in (False, True):
        module = toy(fused=fused, bad={1})
        module.load_state_dict(start.state_dict())
        trainer = make_trainer(callbacks=[LearningRateWarmup(9)], max_epochs=1 if interrupted else 2)
        trainer.fit(module, loader)
        if interrupted:
            trainer.save_checkpoint("run.ckpt")
            state = torch.load("run.ckpt", weights_only=True)
            assert state["optimizer_states"][0]["param_groups"][0]["lr"] == 1e-2
            module = toy(fused=fused, bad={1})
            callback = LearningRateWarmup(9)
            make_trainer(callbacks=[callback], max_epochs=2).fit(module, loader, ckpt_path="run.ckpt")
            assert callback.steps == [9]
        ends.append(module.state_dict())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("first", ["warmup", "checkpoint"])
def test_a_step_broken_off_leaves_no_warmed_learning_rate(toy, make_trainer, batches, first):
    class Breaks(toy):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise KeyError("planted")  # within the optimizer's step, in float32
            return super().training_step(batch, batch_idx)

    class Save(pl.Callback):
        def on_exception(self, trainer, *_):
            trainer.save_checkpoint("broken.ckpt")

    callbacks = [LearningRateWarmup(100), Save()]
    trainer = make_trainer(callbacks=callbacks[:: 1 if first == "warmup" else -1], precision="32-true")
    with pytest.raises(KeyError, match="planted"):
        trainer.fit(Breaks(), batches(4))
    assert final_lr(trainer) == 1e-2
    saved = torch.load("broken.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"][0]
    assert saved["lr"] == 1e-2
    assert "lr_of_schedule" not in saved


def test_a_learning_rate_in_a_tensor_stays_the_same_tensor(toy, make_trainer, batches):
    lr = torch.tensor(1e-2)

    class TensorLR(toy):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=lr, fused=True)

    callback = LearningRateWarmup(5, start_lr=1e-4)
    trainer = make_trainer(callbacks=[callback], precision="32-true")
    trainer.fit(TensorLR(), batches(3))
    assert trainer.optimizers[0].param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(1e-2)
    assert trainer.callback_metrics["lr-Adam/effective"].item() == pytest.approx(1e-4 + 0.4 * 0.0099)


def test_the_learning_rates_of_groups_and_optimizers_are_logged_by_name(toy, make_trainer, batches):
    logger = CSVLogger(".")
    trainer = make_trainer(callbacks=[LearningRateWarmup(4), LearningRateMonitor()], logger=logger)
    trainer.fit(Scheduled("none", 2, set()), batches(3))
    metrics = trainer.callback_metrics
    assert metrics["lr-Recording/pg1/effective"].item() == pytest.approx(PEAKS[0] * (0.02 + 0.98 * 2 / 4))
    assert metrics["lr-Recording/pg2/effective"].item() == pytest.approx(PEAKS[1] * (0.02 + 0.98 * 2 / 4))
    trainer = make_trainer(callbacks=[LearningRateWarmup(4)])
    trainer.fit(toy(manual=True, optimizers=2), batches(3))
    assert {"lr-Adam/effective", "lr-Adam-1/effective"} <= set(trainer.callback_metrics)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")  # said once a process, whichever test is first
def test_a_step_without_gradients_does_not_count(toy, make_trainer, batches):
    callback = LearningRateWarmup(50)
    make_trainer(callbacks=[callback], precision="32-true").fit(toy(none={1, 3}), batches(6))
    assert callback.steps == [4]


def test_two_in_one_trainer_multiply_and_leave_the_schedule_alone(make_trainer, batches):
    module = Scheduled("StepLR", 1, set())
    callbacks = [LearningRateWarmup(4, start_factor=0.5), LearningRateWarmup(4, start_factor=0.25)]
    trainer = make_trainer(callbacks=callbacks, max_epochs=EPOCHS)
    trainer.fit(module, batches(BATCHES))
    assert trainer.optimizers[0].used[0] == pytest.approx([PEAKS[0] * 0.125])
    assert final_lr(trainer) == oracle("StepLR", 1, 1, set())[1][0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"warmup_steps": -1}, "`warmup_steps` must be 0 or more, got -1"),
        ({"start_factor": 0.0}, "`start_factor` must lie in (0, 1], got 0.0"),
        ({"start_lr": float("nan")}, "`start_lr` must be 0 or more, got nan"),
        ({"start_lr": 1e-6, "start_factor": 0.1}, "both given, got 1e-06 and 0.1"),
        ({"decay_factor": 1.1}, "`decay_factor` must lie in (0, 1], got 1.1"),
        ({"decay_every_n_epochs": 3}, "needs `decay_factor`, got 3"),
        ({"max_lr": 0.0}, "`max_lr` must be positive, got 0.0"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        LearningRateWarmup(**arguments)
    assert text in str(error.value)


def test_a_copy_made_during_a_fit_has_the_steps(toy, make_trainer, batches):
    callback, copies = LearningRateWarmup(50), []

    class Copy(pl.Callback):
        def on_train_batch_end(self, *_):
            copies.append(copy.deepcopy(callback).steps)

    make_trainer(callbacks=[callback, Copy()]).fit(toy(bad={1}), batches(4))
    assert copies == [[1], [1], [2], [3]]
