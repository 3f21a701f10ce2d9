"""Warm the learning rate up, whatever schedule, optimizer or parameter groups there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import ConfigurationError
from lightning_mp.optim.linear_warmup import LinearWarmup
from lightning_mp.optim.warmed_steps import WarmedSteps


class LearningRateWarmup(Callback):
    """Warm the learning rate up from a small one to the schedule's, in a straight line over the first steps.

    It composes with any schedule: `param_groups[...]["lr"]` has the schedule's own value at any time but while a step
    is taken, so a schedule, a checkpoint or your code never reads a warmed one, and after the warm-up the run goes on
    as if there had been none. Steps that a gradient scaler skips don't count, with fused optimizers neither. Each
    optimizer counts its own steps. A resumed run takes the steps of an uninterrupted one, to the bit.

    Without `decay_factor` and `max_lr` it does nothing after the warm-up. `LearningRateMonitor` logs the schedule's
    value; what was used is logged here.

    Args:
        warmup_steps: Optimizer steps of the warm-up; the step after them has the schedule's learning rate.
        start_lr: Learning rate of the first step, of every parameter group.
        start_factor: The same as a part of the schedule's, which keeps the ratio of the groups; None for 0.02 where
            `start_lr` is not given.
        decay_factor: Multiplies the schedule's learning rate every `decay_every_n_epochs` epochs; None for no decay.
        decay_every_n_epochs: Epochs between two of these; None for 3 where `decay_factor` is given.
        max_lr: Learning rate that no step exceeds; None for no limit.

    Logs:
        `lr-<Optimizer>/effective`: learning rate of the last step, on the Trainer's logging steps. With several
            parameter groups `lr-Adam/pg1/effective` and so on, a second `Adam` is `lr-Adam-1`, as
            `LearningRateMonitor` has it.

    Raises:
        ConfigurationError: A number is outside of its range, or two are given of which one excludes the other.

    Example:
        >>> warmup = LearningRateWarmup(warmup_steps=1000, start_lr=1e-6)
        >>> trainer = pl.Trainer(callbacks=[warmup], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        warmup_steps: int = 1000,
        *,
        start_lr: float | None = None,
        start_factor: float | None = None,
        decay_factor: float | None = None,
        decay_every_n_epochs: int | None = None,
        max_lr: float | None = None,
    ) -> None:
        if start_lr is not None and start_factor is not None:
            problem = f"`start_lr` and `start_factor` are both given, got {start_lr!r} and {start_factor!r}"
            raise ConfigurationError(problem, "give one of them")
        if decay_factor is not None and not 0 < decay_factor <= 1:
            raise ConfigurationError(f"`decay_factor` must lie in (0, 1], got {decay_factor!r}", "use 0.9")
        if decay_every_n_epochs is not None and (decay_factor is None or decay_every_n_epochs < 1):
            problem = (
                f"`decay_every_n_epochs` must be at least 1 and needs `decay_factor`, got {decay_every_n_epochs!r}"
            )
            raise ConfigurationError(problem, "use `decay_factor=0.9` and `decay_every_n_epochs=3`")
        if max_lr is not None and not max_lr > 0:
            raise ConfigurationError(f"`max_lr` must be positive, got {max_lr!r}", "use 2e-4")
        self.warmup_steps = warmup_steps
        self.start_lr = start_lr
        self.start_factor = start_factor
        self.decay_factor = decay_factor
        self.decay_every_n_epochs = decay_every_n_epochs
        self.max_lr = max_lr
        names = ("warmup_steps", "start_lr", "start_factor", "decay_factor", "decay_every_n_epochs", "max_lr")
        self._state_key = self._generate_state_key(**{name: getattr(self, name) for name in names})
        factor = 0.02 if start_factor is None else start_factor
        self._warmup = LinearWarmup(warmup_steps=warmup_steps, start_lr=start_lr, start_factor=factor)
        self._steps: list[int] = []
        self._warmed: list[WarmedSteps] | None = None

    @property
    def steps(self) -> list[int]:
        """Steps taken by each optimizer, counted no further than the warm-up goes."""
        return self._steps if self._warmed is None else [warmed.steps for warmed in self._warmed]

    @property
    def effective_lr(self) -> list[list[float]]:
        """Learning rates that the last step was taken with, by optimizer and parameter group; empty outside a fit."""
        return [warmed.effective_lr for warmed in self._warmed or []]

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # before the state of a checkpoint is loaded
            self._steps = []

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()
        missing = len(trainer.optimizers) - len(self._steps)
        self._steps += [0] * missing  # none was loaded, or the checkpoint has fewer optimizers
        self._warmed = [
            WarmedSteps(optimizer, self._warmup, steps=steps, max_lr=self.max_lr)
            for optimizer, steps in zip(trainer.optimizers, self._steps, strict=False)
        ]

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for warmed in self._warmed or []:
            warmed.restore()  # the step before may have been broken off by an exception that the module caught
            if self.decay_factor is not None:  # not at the start of the epoch: a run resumed within it has none
                warmed.decay = self.decay_factor ** (trainer.current_epoch // (self.decay_every_n_epochs or 3))

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._warmed and is_logging_step(trainer):
            seen: Counter[str] = Counter()
            for optimizer, warmed in zip(trainer.optimizers, self._warmed, strict=False):
                kind = type(optimizer).__name__
                name = f"lr-{kind}" if not seen[kind] else f"lr-{kind}-{seen[kind]}"
                seen[kind] += 1
                lrs = warmed.effective_lr
                for number, lr in enumerate(lrs, 1):
                    group = f"/pg{number}" if len(lrs) > 1 else ""
                    pl_module.log(f"{name}{group}/effective", lr)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = list(state_dict["steps"])

    def __getstate__(self) -> dict[str, Any]:
        return {**detached_state(self.__dict__, run=["_warmed"]), "_steps": self.steps}

    def _release(self) -> None:
        if self._warmed is not None:
            self._steps = self.steps
            for warmed in self._warmed:
                warmed.release()
            self._warmed = None
