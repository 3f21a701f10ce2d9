"""Tell which optimizer steps a gradient scaler skipped, and where the overflow began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.backward_order import backward_order
from lightning_mp.precision.forward_replay import ForwardReplay
from lightning_mp.precision.forward_trace import ForwardTrace, non_finite_outputs
from lightning_mp.precision.loss_scale import ScalerSettings
from lightning_mp.precision.non_finite import finite_flags, non_finite_names, unique_layers
from lightning_mp.precision.step_attempt import StepAttempt

_TRACED_STEPS = 100


class StepWatch:
    """Hooks on optimizers that tell which steps were skipped; a scaler does not call an optimizer whose step it skips.

    A fused optimizer is called always and decides on the device, by the tensor `found_inf` that the scaler leaves on
    it. Such steps stay unsettled until `settled(read_device=True)`.

    Args:
        scaler: The gradient scaler, which must be enabled.
        optimizers: Optimizers, in the order their positions are counted.
        name_layers: Whether to look for the layers of an overflow.

    Attributes:
        settings: How the scaler moves its scale, as it stood at the last skip or the last read from the device.
    """

    def __init__(self, scaler: GradScaler, optimizers: Sequence[Optimizer], *, name_layers: bool = True) -> None:
        self.saw_backward = False
        self.tried_in_batch = False
        self._scaler = scaler
        self._optimizers = list(optimizers)
        self._name_layers = name_layers
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._on_step) for optimizer in self._optimizers
        ]
        self._attempts: list[StepAttempt] = []
        self._losses: list[Tensor] = []
        self._trace = ForwardTrace()
        self._replay = ForwardReplay()
        self._traced_steps_left = 0
        self._order: dict[int, int] = {}
        self._batch: Any = None
        self._batches = 0
        self.settings = _settings(scaler)

    @property
    def is_unsettled(self) -> bool:
        """Whether a step was tried that `settled` has not told of."""
        return bool(self._attempts)

    @property
    def scale(self) -> float:
        """The loss scale now; one read from the device."""
        return float(self._scaler.get_scale())

    def start_batch(self, module: nn.Module, batch: Any) -> None:
        """Call before the forward pass.

        Args:
            module: The module that is trained.
            batch: Its input, any nesting of tensors.
        """
        if self.tried_in_batch:  # a window of accumulated batches ended with the last one
            self._losses.clear()
            self._trace.forget()
        self.saw_backward = self.tried_in_batch = False
        self._batch = batch
        self._batches += 1
        if self._traced_steps_left:
            self._trace.attach(module)
        elif self._name_layers:
            self._replay.attach(module)

    def see_loss(self, loss: Tensor) -> None:
        """Call before each backward pass.

        Args:
            loss: What `backward` is called on, already multiplied by the scale.
        """
        self.saw_backward = True
        self._losses.append(loss.detach())
        if self._name_layers and self._batches == 1:
            self._order.update(backward_order(loss))

    def expect_step(self, module: nn.Module, optimizer: Optimizer, step: int, *, clips: bool) -> None:
        """Call when the gradients are ready, before the scaler's `step`, and before clipping.

        Args:
            module: The module that is trained.
            optimizer: The optimizer whose step is about to be tried.
            step: Number of the step.
            clips: Whether the gradients may be, or were, clipped.
        """
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
            self._handles.append(optimizer.register_step_pre_hook(self._on_step))
        self.tried_in_batch = True
        self._replay.pause()
        attempt = StepAttempt(
            step=step,
            optimizer=optimizer,
            position=self._optimizers.index(optimizer),
            batch=self._batches,
            clips=clips,
            losses=list(self._losses),
            outputs=list(self._trace.outputs),
        )
        if self._traced_steps_left:
            gradients = self._gradients(module, optimizer)
            attempt.names = list(gradients)
            attempt.finite = finite_flags(list(gradients.values())) if gradients else None
        self._attempts.append(attempt)

    def settled(self, *, read_device: bool) -> list[tuple[StepAttempt, bool]]:
        """Steps whose outcome is known and was not given before, in the order they were tried.

        Args:
            read_device: Whether to settle those of fused optimizers too, by one read from the device.

        Returns:
            Pairs of the attempt and whether it was skipped.
        """
        if read_device:
            self.settings = _settings(self._scaler)
        if not self._attempts:
            return []
        unread = [attempt.found_inf for attempt in self._attempts if attempt.found_inf is not None]
        if unread and read_device:
            values = iter(torch.stack([value.to(unread[0].device) for value in unread]).tolist())
            for attempt in self._attempts:
                if attempt.found_inf is not None:
                    attempt.taken, attempt.found_inf = next(values) == 0, None
        known: list[tuple[StepAttempt, bool]] = []
        while self._attempts and self._attempts[0].found_inf is None:
            attempt = self._attempts.pop(0)
            known.append((attempt, not attempt.taken))
            if not attempt.taken:
                self.settings = _settings(self._scaler)
            self._traced_steps_left = max(0, self._traced_steps_left - 1)
        return known

    def began_forward(self, attempt: StepAttempt) -> bool:
        """Whether a loss of a skipped step was not finite; one read from the device."""
        return bool(attempt.losses) and not bool(finite_flags(attempt.losses).all())

    def layers(self, module: nn.Module, attempt: StepAttempt, *, forward: bool) -> tuple[str, ...]:
        """Layers whose values were not finite in a skipped step, the one where it began first.

        Args:
            module: The module that is trained.
            attempt: The step.
            forward: Whether the overflow began in the forward pass.

        Returns:
            Names of modules, or of parts of the batch (`batch['dense']`); empty where it cannot be told any more. Then,
            and after an overflow of the forward pass, the next 100 steps are traced.
        """
        if not self._name_layers:
            return ()
        fresh = attempt.batch == self._batches
        names = (
            self._began_forward_in(module, attempt, fresh)
            if forward
            else self._began_backward_in(module, attempt, fresh)
        )
        if not names:
            self._traced_steps_left = _TRACED_STEPS
        return names

    def end_batch(self) -> None:
        """Call when the batch is done."""
        if self._trace.is_attached:
            self._trace.detach()
        self._replay.pause()
        self._replay.forget()
        self._batch = None

    def release(self) -> None:
        """Take every hook off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.end_batch()
        self._replay.detach()

    def _on_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        attempt = next((entry for entry in reversed(self._attempts) if entry.optimizer is optimizer), None)
        if attempt is None:
            return
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, Tensor):
            attempt.found_inf, attempt.scale = found_inf, getattr(optimizer, "grad_scale", None)
        else:
            attempt.taken = True

    def _began_forward_in(self, module: nn.Module, attempt: StepAttempt, fresh: bool) -> tuple[str, ...]:
        if not fresh:
            return non_finite_outputs(attempt.outputs)
        entries, _ = tree_flatten_with_path(self._batch)
        inputs = {f"batch{keystr(path)}": value for path, value in entries if isinstance(value, Tensor)}
        weights = unique_layers(non_finite_names(dict(module.named_parameters())))
        traced = non_finite_outputs(attempt.outputs) if attempt.outputs else self._replay.non_finite_layers()
        return (*non_finite_names(inputs), *(weights or traced))

    def _began_backward_in(self, module: nn.Module, attempt: StepAttempt, fresh: bool) -> tuple[str, ...]:
        if attempt.finite is not None:
            bad = [name for name, finite in zip(attempt.names, attempt.finite.tolist(), strict=True) if not finite]
        elif fresh:
            gradients = self._gradients(module, attempt.optimizer)
            bad = non_finite_names(gradients)
            if attempt.clips and len(bad) == len(gradients):
                return ()
        else:
            return ()
        parameters = dict(module.named_parameters())
        # Under `torch.compile` all are equally far, and the one registered last is taken as the nearest.
        late_first = sorted(bad, key=list(parameters).index, reverse=True)
        return unique_layers(sorted(late_first, key=lambda name: self._order.get(id(parameters[name]), 0)))

    def _gradients(self, module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return {
            name: parameter.grad
            for name, parameter in module.named_parameters()
            if parameter.grad is not None and id(parameter) in own
        }


def _settings(scaler: GradScaler) -> ScalerSettings:
    bounds = {"floor": getattr(scaler, "min_scale", None), "ceiling": getattr(scaler, "max_scale", None)}
    return ScalerSettings(
        growth_factor=scaler.get_growth_factor(),
        backoff_factor=scaler.get_backoff_factor(),
        growth_interval=scaler.get_growth_interval(),
        retry_interval=getattr(scaler, "retry_interval", 0),
        **{name: float(bound) for name, bound in bounds.items() if bound is not None},
    )
