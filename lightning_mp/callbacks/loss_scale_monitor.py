"""Watch the loss scale: skipped steps, their cause, and a scale that is dying."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.highest_of_processes import highest_of_processes
from lightning_mp.callbacks.log_metrics import log_metrics
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import ConfigurationError, LightningMPWarning, NumericError
from lightning_mp.precision.loss_scale import LossScaleHistory, ScaleForecast
from lightning_mp.precision.loss_scale_verdict import collapse, forecast_text
from lightning_mp.precision.overflow_event import OverflowEvent
from lightning_mp.precision.step_attempt import StepAttempt
from lightning_mp.precision.step_watch import StepWatch

OnCollapse = Literal["warn", "stop", "raise"]
_EVENTS_KEPT = 256


class LossScaleMonitor(Callback):
    """Log the loss scale, count the steps it skipped, say why, and act when it collapses.

    A skipped step is told from the optimizer itself, so it is right for plain and fused optimizers, accumulated
    gradients, several optimizers, manual optimization, DDP and `torch.compile`. The weights are the same with and
    without it. Nothing is read from the device but on the Trainer's logging steps and after a skip; with a fused
    optimizer a skip is known on the next logging step. A run without a gradient scaler is left alone.

    Each skip is one more `OverflowEvent` in `events`. Its layers are read from the gradients, or, for an overflow of
    the forward pass, from running the batch again on a shadow of the module. Where that cannot tell (clipping has
    spread a NaN, a fused optimizer told late), the next 100 steps are traced, and the next skip has its layers.

    Args:
        min_scale: Loss scale below which it counts as collapsed.
        patience: Skipped steps in a row, of one optimizer, after which it counts as collapsed.
        on_collapse: `"warn"` gives a `LightningMPWarning` once a run, `"stop"` also ends the fit after this step,
            `"raise"` raises `NumericError`.
        name_layers: Whether to look for the layers of an overflow.

    Attributes:
        events: The last 256 skips, the oldest first.
        history: Counts of the run.

    Logs:
        `loss_scale`: the scale, as `scale` in the progress bar too; like all of them on the Trainer's logging steps.
        `loss_scale/log2`: its logarithm to base 2; -150 for a scale of zero.
        `loss_scale/skipped_steps`: optimizer steps skipped since the run began, as `skipped` in the progress bar too.
        `loss_scale/skip_rate`: their share of the steps tried, in [0, 1].
        `loss_scale/consecutive_skips`: skips in a row up to now, of the optimizer that has most.

    Raises:
        ConfigurationError: `min_scale` is not positive, `patience` is below 1, or `on_collapse` is another word.
        NumericError: The scale collapsed and `on_collapse` is `"raise"`.

    Example:
        >>> monitor = LossScaleMonitor(on_collapse="stop")
        >>> trainer = pl.Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        min_scale: float = 1.0,
        *,
        patience: int = 20,
        on_collapse: OnCollapse = "warn",
        name_layers: bool = True,
    ) -> None:
        if not min_scale > 0:
            raise ConfigurationError(f"`min_scale` must be positive, got {min_scale!r}", "use 1.0")
        if patience < 1:
            raise ConfigurationError(f"`patience` must be at least 1, got {patience!r}", "use 20")
        if on_collapse not in get_args(OnCollapse):
            problem = f"`on_collapse` must be `warn`, `stop` or `raise`, got {on_collapse!r}"
            raise ConfigurationError(problem, "use `warn`")
        self.min_scale = min_scale
        self.patience = patience
        self.on_collapse = on_collapse
        self.name_layers = name_layers
        names = ("min_scale", "patience", "on_collapse", "name_layers")
        self._state_key = self._generate_state_key(**{name: getattr(self, name) for name in names})
        self.events: deque[OverflowEvent] = deque(maxlen=_EVENTS_KEPT)
        self.history = LossScaleHistory()
        self._watch: StepWatch | None = None
        self._module_clips = False
        self._warned: set[str] = set()

    @property
    def forecast(self) -> ScaleForecast | None:
        """When the scale will die if the run goes on as it did; None while it does not fall, or no run is on."""
        return None if self._watch is None else self.history.forecast(self.min_scale, self._watch.settings)

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # before the state of a checkpoint is loaded
            self.history = LossScaleHistory()
            self.events.clear()
            self._warned.clear()

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()
        scaler = trainer.scaler
        if scaler is None or not scaler.is_enabled():
            rank_zero_info(
                f"`LossScaleMonitor` found no gradient scaler: the run uses precision `{trainer.precision}`, which has "
                "none; the monitor stays idle"
            )
            return
        state = scaler.state_dict()
        self.history.scale, self.history.clean_steps = state["scale"], state["_growth_tracker"]
        # Whether the user's module overrides the clipping hook; both Lightning packages keep theirs in `core.module`.
        self._module_clips = not type(pl_module).configure_gradient_clipping.__module__.endswith("core.module")
        self._watch = StepWatch(scaler, trainer.optimizers, name_layers=self.name_layers)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._watch is not None:
            self._watch.start_batch(pl_module, batch)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._watch is not None:
            self._watch.see_loss(loss)

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        # Without a backward pass (training_step gave None) automatic optimization leaves the scaler alone.
        if self._watch is None or (pl_module.automatic_optimization and not self._watch.saw_backward):
            return
        self._settle(trainer, pl_module, read_device=False)
        clips = bool(trainer.gradient_clip_val) or not pl_module.automatic_optimization or self._module_clips
        self._watch.expect_step(pl_module, optimizer, trainer.global_step, clips=clips)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._watch is None:
            return
        logging = self._watch.tried_in_batch and is_logging_step(trainer)
        self._settle(trainer, pl_module, read_device=logging)
        if logging:
            values = {
                "loss_scale": self.history.scale,
                "loss_scale/log2": self.history.log2,
                "loss_scale/skipped_steps": float(self.history.skipped),
                "loss_scale/skip_rate": self.history.skip_rate,
                "loss_scale/consecutive_skips": float(self.history.longest_consecutive),
            }
            log_metrics(trainer, values, progress_bar={"scale": self.history.scale, "skipped": self.history.skipped})
        self._watch.end_batch()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._settle(trainer, pl_module, read_device=True)
        self._release()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"history": asdict(self.history), "events": [event.to_dict() for event in self.events]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = LossScaleHistory(**state_dict["history"])
        self.events = deque(map(OverflowEvent.from_dict, state_dict["events"]), maxlen=_EVENTS_KEPT)

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__, run=["_watch"])

    def _settle(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *, read_device: bool) -> None:
        watch = self._watch
        if watch is None or not (read_device or watch.is_unsettled):
            return
        for attempt, skipped in watch.settled(read_device=read_device):
            scale = self.history.scale
            self.history.record(attempt.position, skipped, watch.settings)
            if skipped:
                self.events.append(self._event(trainer, pl_module, watch, attempt, scale))
                if not read_device:
                    self.history.scale = watch.scale
                self._judge(trainer)
        if read_device:
            self.history.scale = watch.scale
            self._judge(trainer)

    def _event(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, watch: StepWatch, attempt: StepAttempt, scale: float
    ) -> OverflowEvent:
        # Gradients are summed over the processes, so all of them skip together; the loss that was not finite may be
        # another's.
        forward = bool(highest_of_processes(trainer, watch.began_forward(attempt)))
        return OverflowEvent(
            step=attempt.step,
            scale=scale if attempt.scale is None else float(attempt.scale),
            origin="forward" if forward else "backward",
            layers=watch.layers(pl_module, attempt, forward=forward),
            optimizer=attempt.position,
        )

    def _judge(self, trainer: pl.Trainer) -> None:
        if verdict := collapse(self.history, self.events, min_scale=self.min_scale, patience=self.patience):
            if self.on_collapse == "raise":
                raise NumericError(*verdict)
            if self.on_collapse == "stop":
                trainer.should_stop = True
            self._warn("collapse", *verdict)
        elif (forecast := self.forecast) is not None:
            remaining = trainer.estimated_stepping_batches - trainer.global_step
            if forecast.steps_to_minimum < remaining:
                self._warn("forecast", *forecast_text(forecast, min_scale=self.min_scale))

    def _warn(self, kind: str, problem: str, hint: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            rank_zero_warn(f"{problem}\n\nhint: {hint}", category=LightningMPWarning)

    def _release(self) -> None:
        if self._watch is not None:
            self._watch.release()
            self._watch = None
