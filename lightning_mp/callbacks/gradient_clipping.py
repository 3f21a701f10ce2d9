"""Clip gradients rightly under a loss scale, in automatic and manual optimization, dense and sparse."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import ConfigurationError
from lightning_mp.optim.clip_gradients import Clipped, clip_gradients

_SHORT = ("16-mixed", "bf16-mixed", "16-true", "bf16-true")
_COUNTED_AT_ONCE = 64
_SHARDED = ("FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy")


class GradientClipping(Callback):
    """Clip the gradients of each optimizer before its step, at their true size whatever the loss scale.

    It stands in for the Trainer's `gradient_clip_val`, and clips where that does not: with fused optimizers under a
    gradient scaler, which are given scaled gradients; in manual optimization, where `self.clip_gradients` clips
    scaled ones; sparse gradients. A callback that stands before it sees the gradients as they were, a later one
    clipped. Gradients that are not finite are left to the scaler. Nothing is read from the device but on the Trainer's
    logging steps.

    Args:
        max_norm: Largest 2-norm of all gradients of an optimizer together; or
        max_value: Largest size of an element; or
        fp32_threshold: The `max_norm` of a float32 run: used as it is in float32, and halved where gradients are
            computed in float16 or bfloat16.

    Attributes:
        steps: Steps whose gradients were finite.
        clipped_steps: Those of them in which a gradient was clipped.

    Logs:
        `gradient_norm`: 2-norm of the last step's gradients before clipping, on the Trainer's logging steps; that of
            the optimizer with the largest; not finite in a step that overflows.
        `gradient_norm/clipped_share`: `clipped_steps` over `steps`, in [0, 1].

    Raises:
        ConfigurationError: Not exactly one of the three is given, it is not positive, the Trainer clips too, or its
            strategy shards the parameters.

    Example:
        >>> clipping = GradientClipping(max_norm=1.0)
        >>> trainer = pl.Trainer(callbacks=[clipping], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self, max_norm: float | None = None, *, max_value: float | None = None, fp32_threshold: float | None = None
    ) -> None:
        given = {"max_norm": max_norm, "max_value": max_value, "fp32_threshold": fp32_threshold}
        thresholds = {name: value for name, value in given.items() if value is not None}
        if len(thresholds) != 1:
            raise ConfigurationError(
                f"one of `max_norm`, `max_value` and `fp32_threshold` is needed, got {len(thresholds)} of them",
                "use `max_norm=1.0`",
            )
        for name, value in thresholds.items():
            if not 0 < value < math.inf:
                raise ConfigurationError(f"`{name}` must be positive and finite, got {value!r}", "use 1.0")
        self.max_norm = max_norm
        self.max_value = max_value
        self.fp32_threshold = fp32_threshold
        self._state_key = self._generate_state_key(**given)
        self.steps = 0
        self.clipped_steps = 0
        self._counts: Tensor | None = None
        self._uncounted: list[Clipped] = []
        self._in_batch: list[Clipped] = []
        self._scale_of_one: Tensor | None = None
        self._saw_backward = False

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if trainer.gradient_clip_val:
            raise ConfigurationError(
                f"gradients would be clipped twice: the Trainer has `gradient_clip_val={trainer.gradient_clip_val}`",
                "leave `gradient_clip_val` out",
            )
        strategy = type(trainer.strategy).__name__
        if strategy in _SHARDED:
            raise ConfigurationError(
                f"`GradientClipping` sees only a shard of each gradient under `{strategy}`",
                "use the Trainer's `gradient_clip_val`",
            )
        self.steps = self.clipped_steps = 0  # before the state of a checkpoint is loaded
        self._forget()

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._saw_backward = False
        self._in_batch.clear()

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        self._saw_backward = True

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if pl_module.automatic_optimization and not self._saw_backward:
            return  # training_step gave None: what gradients there are stay scaled, and no step follows
        max_norm = self.max_norm
        if self.fp32_threshold is not None:
            max_norm = self.fp32_threshold / 2 if trainer.precision in _SHORT else self.fp32_threshold
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        scale = self._scale(trainer, pl_module, optimizer)
        clipped = clip_gradients(parameters, max_norm=max_norm, max_value=self.max_value, scale=scale)
        if clipped is not None:
            self._in_batch.append(clipped)
            self._uncounted.append(clipped)
            if len(self._uncounted) >= _COUNTED_AT_ONCE:
                self._count()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._in_batch and is_logging_step(trainer):
            self._read_counts()
            pl_module.log("gradient_norm", max(float(clipped.norm) for clipped in self._in_batch))
            pl_module.log("gradient_norm/clipped_share", self.clipped_steps / max(self.steps, 1))

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._read_counts()
        self._forget()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._forget()

    @override
    def state_dict(self) -> dict[str, Any]:
        self._read_counts()
        return {"steps": self.steps, "clipped_steps": self.clipped_steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]
        self.clipped_steps = state_dict["clipped_steps"]

    def __getstate__(self) -> dict[str, Any]:
        self._read_counts()
        return {**detached_state(self.__dict__, run=["_counts", "_scale_of_one"]), "_uncounted": [], "_in_batch": []}

    def _scale(self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer) -> Tensor | None:
        """The loss scale where the gradients still carry it: before the step of an optimizer that unscales itself."""
        scaler = trainer.scaler
        if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
            return None
        if self._scale_of_one is None:
            self._scale_of_one = torch.ones((), device=pl_module.device)
        scale: Tensor = scaler.scale(self._scale_of_one)  # `get_scale` would wait for the device
        return scale

    def _count(self) -> None:
        """Add what was found since to the counts on the device."""
        if self._uncounted:
            found = Clipped.gathered(self._uncounted)
            counts = torch.stack([found.finite.sum(), found.clipped.sum()])
            self._counts = counts if self._counts is None else self._counts + counts
            self._uncounted.clear()

    def _read_counts(self) -> None:
        self._count()
        if self._counts is not None:
            steps, clipped_steps = self._counts.tolist()
            self.steps += steps
            self.clipped_steps += clipped_steps
            self._counts = None

    def _forget(self) -> None:
        self._counts = self._scale_of_one = None
        self._uncounted.clear()
        self._in_batch.clear()
