"""The light record of skipped steps that a report keeps where no `LossScaleMonitor` does."""

from __future__ import annotations

from collections import deque

import lightning.pytorch as pl
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.callbacks.highest_of_processes import highest_of_processes
from lightning_mp.precision.loss_scale import LossScaleHistory
from lightning_mp.precision.non_finite import non_finite_names, unique_layers
from lightning_mp.precision.overflow_event import OverflowEvent
from lightning_mp.precision.step_watch import StepWatch

_NAMED_STEPS = 200


class SkipRecorder:
    """Counts skipped steps as `LossScaleMonitor` does, and looks for their layers only once there was a skip.

    Looking costs hooks on every layer; a run that skips nothing has none. The first skip is told by what is at hand,
    the gradients; the 200 steps after it are watched as `LossScaleMonitor` watches all.

    Args:
        trainer: With an enabled gradient scaler.
        history: Counts of the run so far, of a resumed one.

    Attributes:
        history: Counts of the run.
        events: The last 256 skips.
    """

    def __init__(self, trainer: pl.Trainer, history: LossScaleHistory | None = None) -> None:
        self.events: deque[OverflowEvent] = deque(maxlen=256)
        self.history = history or LossScaleHistory()
        self._trainer = trainer
        self._named_left = 0
        self._watch = self._new_watch(name_layers=False)
        state = trainer.scaler.state_dict() if trainer.scaler is not None else {}
        self.history.scale = state.get("scale", 1.0)
        self.history.clean_steps = state.get("_growth_tracker", 0)

    @property
    def watch(self) -> StepWatch:
        """What tells skips from steps."""
        return self._watch

    def expect_step(self, module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Call before the step of an optimizer."""
        if module.automatic_optimization and not self._watch.saw_backward:
            return
        clips = bool(self._trainer.gradient_clip_val) or not module.automatic_optimization
        self._settle(module, read_device=False)
        self._watch.expect_step(module, optimizer, self._trainer.global_step, clips=clips)

    def end_batch(self, module: pl.LightningModule, *, read_device: bool) -> None:
        """Call when the batch is done.

        Args:
            module: That is trained.
            read_device: Whether to settle what a fused optimizer decided, and to read the true scale.
        """
        read_device = read_device and self._watch.tried_in_batch
        skipped = self._settle(module, read_device=read_device)
        if read_device:
            self.history.scale = self._watch.scale
        self._watch.end_batch()
        if skipped and not self._named_left:
            self._settle(module, read_device=True)  # after a skip the device has been waited for already
            self._exchange(name_layers=True)
        elif self._named_left and not skipped:
            self._named_left -= 1
            if not self._named_left:
                self._settle(module, read_device=True)
                self._exchange(name_layers=False)

    def finish(self, module: pl.LightningModule) -> None:
        """Settle what is open; the last read."""
        self._settle(module, read_device=True)
        self.history.scale = self._watch.scale

    def release(self) -> None:
        """Take every hook off again."""
        self._watch.release()

    def _new_watch(self, *, name_layers: bool) -> StepWatch:
        scaler = self._trainer.scaler
        assert scaler is not None, "a run without a scaler has no skips"
        return StepWatch(scaler, self._trainer.optimizers, name_layers=name_layers)

    def _exchange(self, *, name_layers: bool) -> None:
        self._watch.release()
        self._watch = self._new_watch(name_layers=name_layers)
        self._named_left = _NAMED_STEPS if name_layers else 0

    def _settle(self, module: pl.LightningModule, *, read_device: bool) -> bool:
        any_skipped = False
        for attempt, skipped in self._watch.settled(read_device=read_device):
            scale = self.history.scale
            self.history.record(attempt.position, skipped, self._watch.settings)
            if not skipped:
                continue
            any_skipped = True
            # All processes skip together; the loss that overflowed may be another's.
            forward = bool(highest_of_processes(self._trainer, self._watch.began_forward(attempt)))
            layers = self._watch.layers(module, attempt, forward=forward)
            if not layers and not self._named_left:
                layers = _at_hand(module, forward=forward, clips=attempt.clips)
            self.events.append(
                OverflowEvent(
                    step=attempt.step,
                    scale=scale if attempt.scale is None else float(attempt.scale),
                    origin="forward" if forward else "backward",
                    layers=layers,
                    optimizer=attempt.position,
                )
            )
        return any_skipped


def _at_hand(module: pl.LightningModule, *, forward: bool, clips: bool) -> tuple[str, ...]:
    """Layers whose gradients overflowed, the one registered last first: the nearest to the loss, mostly."""
    gradients: dict[str, Tensor] = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    bad = [] if forward or not gradients else non_finite_names(gradients)
    return () if clips and len(bad) == len(gradients) else unique_layers(reversed(bad))
