"""Say where the first NaN or infinity of a training run stood."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import LightningMPWarning
from lightning_mp.precision.backward_order import backward_order
from lightning_mp.precision.forward_replay import ForwardReplay
from lightning_mp.precision.host_copies import HostCopies
from lightning_mp.precision.non_finite import layer_of, non_finite_names
from lightning_mp.precision.non_finite_value import NonFiniteValue, non_finite_value

_EVENTS_KEPT = 256


class NonFiniteMonitor(Callback):
    """Name module, tensor, batch, rows and columns of the first value that is not finite, forward or backward.

    A loss that is not finite is traced in this order: the batch itself, the weights, the layers' outputs, for which the
    batch runs again on a shadow of the module. Where the loss is finite and a gradient scaler skips the step, the
    gradients are searched from the loss on. In a run without a scaler such a gradient spoils the weights, and is found
    in them when the next batch makes its loss. The first that is more than a skipped step, which is how a scaler finds
    its scale, is told in a warning. The weights are the same with and without the monitor. Off such batches
    the loss is copied to the host, without waiting for it. Each process looks at its own batches.

    Attributes:
        events: The last 256 such batches, the oldest first, each a `NonFiniteValue`. Its `module` and `tensor` are
            empty where the cause could not be told: in compiled modules, or when clipping has spread a NaN.

    Logs:
        `non_finite/batches`: such batches since the fit began, a resumed one too, on the Trainer's logging steps.

    Example:
        >>> monitor = NonFiniteMonitor()
        >>> trainer = pl.Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False)
    """

    def __init__(self) -> None:
        self.events: deque[NonFiniteValue] = deque(maxlen=_EVENTS_KEPT)
        self._batches = 0
        self._forget()

    def _forget(self) -> None:
        self._copies: HostCopies | None = None
        self._replay: ForwardReplay | None = None
        self._handles: dict[Optimizer, RemovableHandle] = {}
        self._order: dict[int, int] = {}
        self._batch: tuple[int, Any] = (-1, None)
        self._skipped: list[Optimizer] = []  # asked to step, and not called yet
        self._known = self._tried = self._warned = self._clips = self._saw_backward = False

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # before the state of a checkpoint is loaded
            self.events.clear()
            self._batches = 0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()
        self._copies, self._replay = HostCopies(), ForwardReplay()

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._look(pl_module)
        self._batch, self._saw_backward = (batch_idx, batch), False
        if self._replay is not None:
            self._replay.forget()
            self._replay.attach(pl_module)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._copies is None or self._replay is None:
            return
        self._replay.pause()
        self._saw_backward = True
        if not self._order:
            self._order = backward_order(loss)
        self._copies.push(loss, ("forward", trainer.global_step, *self._batch))
        self._look(pl_module)

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if pl_module.automatic_optimization and not self._saw_backward:
            return  # training_step gave None, and the scaler is left alone
        self._tried = True
        self._clips = bool(trainer.gradient_clip_val) or not pl_module.automatic_optimization
        if self._copies is None or trainer.scaler is None or not trainer.scaler.is_enabled():
            return
        self._skipped.append(optimizer)
        if optimizer not in self._handles:

            def on_step(called: Optimizer, _args: Any, _kwargs: Any) -> None:
                if called in self._skipped:
                    self._skipped.remove(called)
                if isinstance(found := getattr(called, "found_inf", None), Tensor) and self._copies is not None:
                    self._copies.push(found, ("backward", trainer.global_step, *self._batch))
                    self._look(pl_module)  # a fused optimizer, which decides on the device

            self._handles[optimizer] = optimizer.register_step_pre_hook(on_step)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._copies is None:
            return
        self._look(pl_module)
        if self._skipped and not self._known:
            self._record(self._in_gradients(pl_module, trainer.global_step - len(self._skipped), batch_idx))
        if self._tried:  # a window of accumulated batches ends
            self._known = self._tried = False
        self._skipped.clear()
        self._batch = (batch_idx, None)
        if self._replay is not None:
            self._replay.pause()
            if not len(self._copies):  # else a loss is on its way that may ask for them
                self._replay.forget()
        if is_logging_step(trainer):
            pl_module.log("non_finite/batches", float(self._batches))

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release()

    def __getstate__(self) -> dict[str, Any]:
        run = ["_copies", "_replay", "_handles", "_order", "_batch", "_skipped"]
        return detached_state(self.__dict__, run=run)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _look(self, pl_module: pl.LightningModule) -> None:
        """Act on what has come from the device."""
        if self._copies is None:
            return
        for (origin, step, number, batch), value in self._copies.arrived():
            if origin == "forward" and not math.isfinite(value):
                self._known = True
                self._record(self._in_forward(pl_module, step, number, batch))
            elif origin == "backward" and value and not self._known:
                self._known = True
                self._record(self._in_gradients(pl_module, step, number))

    def _in_forward(self, pl_module: pl.LightningModule, step: int, number: int, batch: Any) -> NonFiniteValue:
        if (found := _in_batch(batch, step, number)) is not None:
            return found
        parameters = dict(pl_module.named_parameters())
        for name in non_finite_names(parameters)[:1]:  # spoilt by the step before, and so by its gradient
            found = _value(parameters[name], step, number - 1, "backward", layer_of(name), _own(name))
            if found is not None:
                return found
        if self._replay is not None and number == self._batch[0]:
            found = self._replay.first_output(
                lambda name, output: _value(output, step, number, "forward", name, "output")
            )
        return found or _unknown(step, number, "forward")

    def _in_gradients(self, pl_module: pl.LightningModule, step: int, number: int) -> NonFiniteValue:
        if number == self._batch[0] and (found := _in_batch(self._batch[1], step, number)) is not None:
            return found  # a layer such as tanh makes the loss finite again
        gradients = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
        bad = non_finite_names(gradients)
        if not bad or (self._clips and len(bad) == len(gradients) > 1 and _all_nan(gradients)):
            return _unknown(step, number, "backward")  # clipping by the norm spreads a NaN over all of them
        parameters = dict(pl_module.named_parameters())
        late_first = sorted(bad, key=list(parameters).index, reverse=True)
        name = min(late_first, key=lambda entry: self._order.get(id(parameters[entry]), 0))
        found = _value(gradients[name], step, number, "backward", layer_of(name), f"{_own(name)}.grad")
        return found or _unknown(step, number, "backward")

    def _record(self, value: NonFiniteValue) -> None:
        self._batches += 1
        self.events.append(value)
        # A scaler skips now and then because its scale was too large: that alone is no reason to warn.
        if not self._warned and (value.origin == "forward" or not value.tensor.endswith(".grad")) and value.tensor:
            self._warned = True
            hint = (
                "find these rows in the data and repair or drop them"
                if value.tensor.startswith("batch")
                else "`LossScaleMonitor` tells if the loss scale is the cause, `KeepInFP32` keeps a layer in float32"
            )
            rank_zero_warn(f"{value}\n\nhint: {hint}", category=LightningMPWarning)

    def _release(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        if self._replay is not None:
            self._replay.detach()
        self._forget()


def _in_batch(batch: Any, step: int, number: int) -> NonFiniteValue | None:
    for path, leaf in tree_flatten_with_path(batch)[0]:
        if isinstance(leaf, Tensor):
            found = _value(leaf, step, number, "forward", "", f"batch{keystr(path)}")
            if found is not None:
                return found
    return None


def _value(  # noqa: PLR0917 - private shorthand
    values: Tensor, step: int, batch: int, origin: Literal["forward", "backward"], module: str, tensor: str
) -> NonFiniteValue | None:
    return non_finite_value(values, step=step, batch=batch, origin=origin, module=module, tensor=tensor)


def _unknown(step: int, batch: int, origin: Literal["forward", "backward"]) -> NonFiniteValue:
    return NonFiniteValue(
        step=step, batch=batch, origin=origin, module="", tensor="", kind="nan", count=0, rows=(), columns=()
    )


def _own(parameter_name: str) -> str:
    return parameter_name.rpartition(".")[2]


def _all_nan(gradients: dict[str, Tensor]) -> bool:
    return all(bool((g.coalesce().values() if g.is_sparse else g).isnan().all()) for g in gradients.values())
