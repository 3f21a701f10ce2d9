"""Give an optimizer a warmed learning rate in its steps, and in nothing but its steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.optim.linear_warmup import LinearWarmup, Rate, at_most

_SCHEDULED = "lr_of_schedule"  # key of a parameter group that holds the schedule's value during a step


class WarmedSteps:
    """Hooks on one optimizer: a warmed learning rate while a step is taken, the schedule's own at any other time.

    So schedules compose, whatever they do with `param_groups[...]["lr"]`, and an optimizer's `state_dict` never holds
    a warmed value. Only steps really taken count: a `GradScaler` does not call an optimizer whose step it skips, and
    a fused one, which it always calls, is left the tensor `found_inf`. That is copied without waiting for the device,
    and read when the next step begins.

    Args:
        optimizer: The optimizer.
        warmup: How the learning rate is warmed up.
        steps: Steps taken before, by an optimizer whose state this one has loaded.
        max_lr: Learning rate that no step exceeds; None for no limit.

    Attributes:
        decay: Factor on the schedule's learning rate.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> warmed = WarmedSteps(optimizer, LinearWarmup(warmup_steps=4, start_factor=0.5))
        >>> for _ in range(2):
        ...     weight.grad = torch.ones(1)
        ...     optimizer.step()
        >>> weight.item(), warmed.steps, optimizer.param_groups[0]["lr"]
        (-1.125, 2, 1.0)
    """

    def __init__(
        self, optimizer: Optimizer, warmup: LinearWarmup, *, steps: int = 0, max_lr: float | None = None
    ) -> None:
        self.decay = 1.0
        self._optimizer = optimizer
        self._warmup = warmup
        self._max_lr = max_lr
        self._steps = steps
        self._used: list[float | Tensor] | None = None
        self._skipped: Tensor | None = None
        self._skipped_on_host: Any = None
        self._copied: torch.cuda.Event | None = None
        self._unread = False
        self._depth = 0
        self._handles = [
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(self._end),
            optimizer.register_state_dict_post_hook(_scheduled_in_state),
        ]

    @property
    def steps(self) -> int:
        """Steps taken, counted no further than the warm-up goes."""
        self._settle()
        return self._steps

    @property
    def effective_lr(self) -> list[float]:
        """Learning rate of the last step, by parameter group; before the first, that of the first."""
        if self._used is None:
            return [self._lr(float(group["lr"])) for group in self._optimizer.param_groups]
        return [float(lr) for lr in self._used]

    def restore(self) -> None:
        """Put the schedule's learning rates back, where a step was broken off by an exception."""
        self._depth = 0
        for group in self._optimizer.param_groups:
            if _SCHEDULED in group:
                scheduled = group.pop(_SCHEDULED)
                if isinstance(group["lr"], Tensor):  # compiled and captured steps hold on to this very tensor
                    group["lr"].copy_(scheduled)
                else:
                    group["lr"] = scheduled

    def release(self) -> None:
        """Restore, and remove the hooks."""
        self._settle()
        self.restore()
        for handle in self._handles:
            handle.remove()

    def _lr(self, scheduled: Rate) -> Rate:
        target = scheduled * self.decay
        return self._warmup.lr(target if self._max_lr is None else at_most(target, self._max_lr), self._steps)

    def _begin(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1:  # torch calls the hooks once more where a class extends the `step` of one of its own
            return
        self._settle()
        used: list[float | Tensor] = []
        for group in optimizer.param_groups:
            scheduled = group["lr"]
            if isinstance(scheduled, Tensor):
                group.setdefault(_SCHEDULED, scheduled.clone())
                warmed = self._lr(scheduled)
                scheduled.copy_(warmed)
                used.append(warmed)
            else:
                group.setdefault(_SCHEDULED, scheduled)
                group["lr"] = self._lr(scheduled)
                used.append(group["lr"])
        self._used = used

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self.restore()
        if self._steps >= self._warmup.warmup_steps:
            return
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, Tensor):
            self._copy(found_inf)
        elif _has_gradient(optimizer):
            self._steps += 1

    def _copy(self, found_inf: Tensor) -> None:
        if self._skipped is None:
            self._skipped = torch.zeros((), pin_memory=found_inf.is_cuda)
            self._skipped_on_host = self._skipped.numpy()
            self._copied = torch.cuda.Event() if found_inf.is_cuda else None  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._skipped.copy_(found_inf.reshape(()), non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._unread = True

    def _settle(self) -> None:
        if self._unread:
            if self._copied is not None:
                self._copied.synchronize()  # waits for the last step alone, not for what was queued since
            self._steps += int(self._skipped_on_host) == 0
            self._unread = False


def _has_gradient(optimizer: Optimizer) -> bool:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return True
    return False


def _scheduled_in_state(_: Optimizer, state_dict: dict[str, Any]) -> None:
    for group in state_dict["param_groups"]:
        if _SCHEDULED in group:
            group["lr"] = group.pop(_SCHEDULED)
