"""When the layers of a run are measured, and which of them come near float16's end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.precision.layer_ranges import LayerRanges
from lightning_mp.precision.layers_near_overflow import NearOverflow, layers_near_overflow
from lightning_mp.precision.module_names import modules_by_name
from lightning_mp.precision.non_finite import finite_flags
from lightning_mp.precision.step_watch import StepWatch

_FIRST = frozenset({0, 1, 2, 3, 4, 10, 20, 50, 100})
_EVERY = 200
_CLOSELY = 10


class RangeWatch:
    """Measures the layers of a run in its first batches, now and then after, and closely once one of them overflowed.

    Args:
        limit: Largest magnitude that a layer may have in float16.
        state: Plain numbers that decide when the next measurements are, kept up to date here; empty at the start of a
            run. With them a resumed run measures the same.
    """

    def __init__(self, limit: float, state: dict[str, int]) -> None:
        self._limit = limit
        self._state = state
        for name in ("batches", "closely_until", "not_before", "in_vain"):
            state.setdefault(name, 0)
        self._ranges: LayerRanges | None = None
        self._steps: StepWatch | None = None
        self._batch: Any = None

    def start(self, trainer: pl.Trainer) -> None:
        """Call when the optimizers are there."""
        if trainer.scaler is not None and trainer.scaler.is_enabled():
            self._steps = StepWatch(trainer.scaler, trainer.optimizers, name_layers=False)

    def start_batch(self, module: pl.LightningModule, batch: Any, kept: Collection[str] | None) -> None:
        """Call before the forward pass; nothing is measured as long as no layer is kept, None."""
        number, self._batch = self._state["batches"], batch
        if self._steps is not None:
            self._steps.start_batch(module, None)
        closely = number < self._state["closely_until"]
        if kept is not None and (closely or number in _FIRST or (number and number % _EVERY == 0)):
            self._ranges = LayerRanges(module, kept=kept, whole=closely)

    def see_loss(self, loss: Tensor) -> None:
        """Call before each backward pass."""
        if self._ranges is not None:
            self._ranges.settle()
        if self._steps is not None:
            self._steps.see_loss(loss)

    def after_backward(self) -> None:
        """Call after each backward pass."""
        if self._ranges is not None:
            self._ranges.is_open = True

    def expect_step(self, module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Call before the scaler's step."""
        # Without a backward pass (training_step gave None) automatic optimization leaves the scaler alone.
        if self._steps is not None and (self._steps.saw_backward or not module.automatic_optimization):
            self._steps.expect_step(module, optimizer, self._state["batches"], clips=False)

    def end_batch(self, trainer: pl.Trainer, module: pl.LightningModule, kept: Collection[str]) -> NearOverflow | None:
        """Call when the batch is done.

        Returns:
            What a measurement says; None where none was made.
        """
        found: NearOverflow | None = None
        state = self._state
        if self._ranges is not None:
            self._ranges.detach()
            found = self._judge(trainer, module, self._ranges, kept)
            self._ranges = None
            if found.layers:
                state.update(closely_until=state["batches"] + 1 + _CLOSELY, in_vain=0)
            elif state["batches"] + 1 == state["closely_until"]:
                # Overflows that no layer is to blame for: rows that float16 cannot hold, say. Look less and less often.
                state["in_vain"] += 1
                state["not_before"] = state["batches"] + _CLOSELY * 2 ** min(state["in_vain"], 20)
        if self._overflowed(trainer, module) and state["batches"] >= state["not_before"]:
            state["closely_until"] = max(state["closely_until"], state["batches"] + 1 + _CLOSELY)
        state["batches"] += 1
        self._batch = None
        return found

    def release(self) -> None:
        """Take every hook off again."""
        if self._ranges is not None:
            self._ranges.detach()
            self._ranges = None
        if self._steps is not None:
            self._steps.release()
            self._steps = None
        self._batch = None

    def _overflowed(self, trainer: pl.Trainer, module: pl.LightningModule) -> bool:
        """Whether a step was skipped for an overflow of the forward pass that did not come with the batch."""
        if self._steps is None:
            return False
        settled = self._steps.settled(read_device=self._steps.tried_in_batch and is_logging_step(trainer))
        skipped = [attempt for attempt, was_skipped in settled if was_skipped]
        if not skipped:
            return False
        bad = any(self._steps.began_forward(attempt) for attempt in skipped) and _is_finite(self._batch)
        return _on_any_rank(trainer, module, [bad])[0]

    def _judge(
        self, trainer: pl.Trainer, module: pl.LightningModule, ranges: LayerRanges, kept: Collection[str]
    ) -> NearOverflow:
        modules = modules_by_name(module)
        called = {name: inner for name, inner in modules.items() if name in ranges.ran}
        found = layers_near_overflow(ranges.read(), called, self._limit, kept)
        if trainer.world_size == 1:
            return found
        names = list(modules)
        flags = [name in found.layers for name in names]
        together = _on_any_rank(trainer, module, flags)
        layers = {name: found.layers.get(name, self._limit) for name, near in zip(names, together, strict=True) if near}
        return NearOverflow(layers=layers, outside=found.outside)


def _on_any_rank(trainer: pl.Trainer, module: pl.LightningModule, flags: list[bool]) -> list[bool]:
    """Gradients are summed over the processes, so all skip a step together, and all must decide alike."""
    if trainer.world_size == 1:
        return flags
    gathered = trainer.strategy.reduce(torch.tensor(flags, dtype=torch.float32, device=module.device), reduce_op="max")
    return [flag > 0 for flag in gathered.tolist()]


def _is_finite(batch: Any) -> bool:
    floating = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    # A mask for attention may be -inf.
    plain = [leaf if leaf.is_sparse or leaf.dtype.itemsize == 1 else leaf.clamp(min=0) for leaf in floating]
    return all(bool(finite_flags([leaf])) for leaf in plain)
