"""How far the weights moved in the first steps of a run: what a learning rate that is far too high does first."""

from __future__ import annotations

import math

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from lightning_mp.callbacks.precision_report_gradient_norm import holds_whole_module
from lightning_mp.callbacks.precision_report_record import RunRecord

_LOOKS = 5


class WeightGrowth:
    """Compares the size of each weight matrix with that at the start, on the first five logging steps.

    One-dimensional parameters begin at zero or one and say little. Not looked at in a resumed run, whose start is not
    known, nor where a process has only a part of the weights.

    Args:
        record: Where the matrix that grew most goes.
        trainer: Whose fit begins.
        module: That is trained.
    """

    def __init__(self, record: RunRecord, trainer: pl.Trainer, module: nn.Module) -> None:
        self._record = record
        self._left = _LOOKS if holds_whole_module(trainer) and not record.steps else 0
        self._weights = {
            name: parameter
            for name, parameter in (module.named_parameters() if self._left else ())
            if parameter.requires_grad and not isinstance(parameter, nn.UninitializedParameter)
            if parameter.dim() > 1 and parameter.numel() and parameter.is_floating_point()
        }
        self._start = _sizes(list(self._weights.values()))

    def look(self, step: int) -> None:
        """Compare, while it is early.

        Args:
            step: Taken so far.
        """
        if not self._left or not self._weights:
            return
        self._left -= 1
        grown = {
            name: (size / first, first, size)
            for (name, first), size in zip(
                zip(self._weights, self._start, strict=True), _sizes(list(self._weights.values())), strict=True
            )
            if first > 0 and math.isfinite(size)
        }
        if grown:
            worst = max(grown, key=lambda name: grown[name][0])
            times, first, size = grown[worst]
            known = self._record.growth
            if known is None or times > known["to"] / known["from"]:
                self._record.growth = {"weight": worst, "from": first, "to": size, "step": step}


@torch.no_grad()
def _sizes(weights: list[Tensor]) -> list[float]:
    """Root mean square of each."""
    if not weights:
        return []
    norms = torch._foreach_norm(weights)  # noqa: SLF001 - torch's own optimizers and clipping call it
    read = torch.stack([norm.to(norms[0].device, torch.float32) for norm in norms]).tolist()
    return [norm / math.sqrt(weight.numel()) for norm, weight in zip(read, weights, strict=True)]
