"""Count the optimizer steps that a gradient scaler skipped, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class SkipCount:
    """Hooks on optimizers that count their calls; a step that was asked for and not called was skipped.

    A fused optimizer is always called, and left the tensor `found_inf`: these are added up on the device, one operation
    a step. For the layers and the cause of a skip there is `StepWatch`.

    Args:
        optimizers: All that the scaler steps.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> count = SkipCount([optimizer])
        >>> count.expect_step()
        >>> count.skipped, count.attempts
        (1, 1)
        >>> count.release()
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self.attempts = 0
        self._calls = 0
        self._found: Tensor | None = None
        self._handles: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._on_step) for optimizer in optimizers
        ]

    @property
    def skipped(self) -> int:
        """Steps skipped; reads the device once where an optimizer is fused."""
        inside = 0 if self._found is None else int(self._found)
        return self.attempts - self._calls + inside

    def expect_step(self) -> None:
        """Call before each step that is asked for."""
        self.attempts += 1

    def release(self) -> None:
        """Take the hooks off; the counts stay."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _on_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._calls += 1
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, Tensor):
            if self._found is None:
                self._found = torch.zeros((), device=found_inf.device)
            self._found.add_(found_inf.reshape(()) if found_inf.dim() else found_inf)
