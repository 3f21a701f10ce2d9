"""The batches since a report last read the loss, held to trace a loss that is no number to its batch."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from lightning_mp.callbacks.precision_report_record import RunRecord
from lightning_mp.precision.non_finite_value import NonFiniteValue, non_finite_value

_BYTES = 64 * 2**20
_SHARED = 128
_LOSSES = 256


@dataclass(slots=True)
class _Batch:
    number: int
    step: int
    ended: int
    loss: Tensor | None
    parts: int
    content: Any
    seen: bool = False


class RecentBatches:
    """Holds references, and computes nothing until it is asked.

    A batch is let go of once the loss has been read, once the batches held come to 64 MiB, or 128 tensors that lie in
    the shared memory of a loader's workers, each of which is an open file.

    Args:
        record: Where what is found goes.
        trainer: Whose batches they are.
        scaled: Whether a gradient scaler keeps bad batches from the weights: then a later loss has a cause of its own.
    """

    def __init__(self, record: RunRecord, trainer: pl.Trainer, *, scaled: bool) -> None:
        self._record, self._trainer, self._scaled = record, trainer, scaled
        self._held: deque[_Batch] = deque(maxlen=_LOSSES)
        self._most: int | None = None

    def add(self, batch: Any, *, number: int, step: int, ended: int, outputs: Any) -> None:
        """Take a batch that is done.

        Args:
            batch: As the module had it.
            number: In its epoch.
            step: `Trainer.global_step` when it began.
            ended: The same at its end.
            outputs: Of the training step.
        """
        loss = _loss_of(outputs)
        if self._most is None:
            self._most = _how_many(batch)
        if len(self._held) >= self._most:
            self._held[-self._most].content = None
        held = loss if loss is not None and not loss.requires_grad else None
        self._held.append(_Batch(number, step, ended, held, _parts(self._trainer), batch))

    def loss(self, outputs: Any) -> float | None:
        """The loss as the training step gave it; one read from the device. `None` where there is none."""
        loss = _loss_of(outputs)
        return None if loss is None else float(loss) * _parts(self._trainer)

    def forget(self) -> None:
        """Let go of all but the last batch; another callback may tell of its skip only at the next."""
        while len(self._held) > 1:
            self._held.popleft()

    def release(self) -> None:
        """Let go of all."""
        self._held.clear()

    def look(self) -> None:
        """Find the batch whose loss was no number first, and whether it holds one itself; call after a bad sign."""
        gone = self._record.loss_gone
        if self._record.bad_batch is not None or not self._held:
            return
        if gone is not None and gone["finite"] and not self._scaled:
            return  # what comes after it has its cause in the weights
        losses = self._losses()
        bad = [one for one, loss in losses if loss is not None and not math.isfinite(loss) and not one.seen]
        if bad and gone is None:
            before = [loss for one, loss in losses if loss is not None and one.ended < bad[0].ended]
            highest = max((loss for loss in before if math.isfinite(loss)), default=None)
            gone = self._record.loss_gone = {
                "step": bad[0].step, "batch": bad[0].number, "finite": None, "largest": None, "highest_before": highest
            }  # fmt: skip
        suspects = (bad if self._scaled else bad[:1]) or [self._held[-1]]
        for one in suspects:
            one.seen = True
            if one.content is None:
                continue
            found = _first_bad(one)
            if found is not None:
                self._record.bad_batch = found.to_dict()
                break
            if gone is not None and (one.number, one.step) == (gone["batch"], gone["step"]):
                gone["finite"], gone["largest"] = True, _largest(one)

    def tell_losses(self) -> None:
        """Put the losses that no logging step has read into the record: of a run that ends or breaks off."""
        series = self._record.series.get("train_loss")
        last = max([-1, *([step for step, _ in series.points] + series.gaps if series is not None else [])])
        for one, loss in self._losses():
            if loss is not None and one.ended > last:
                self._record.add("train_loss", one.ended, loss)

    def _losses(self) -> list[tuple[_Batch, float | None]]:
        there = [one.loss for one in self._held if one.loss is not None]
        read = iter(torch.stack([loss.reshape(()).to(there[0].device) for loss in there]).tolist() if there else [])
        return [(one, next(read) * one.parts if one.loss is not None else None) for one in self._held]


def _loss_of(outputs: Any) -> Tensor | None:
    """The loss in what a training step gave; `None` where there is none."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def _parts(trainer: pl.Trainer) -> int:
    """By how much Lightning divides a loss, where it accumulates gradients itself."""
    return trainer.accumulate_grad_batches if trainer.lightning_module.automatic_optimization else 1


def _how_many(batch: Any) -> int:
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    shared = any(leaf.device.type == "cpu" and leaf.is_shared() for leaf in leaves)  # type: ignore[no-untyped-call]  # so in torch
    most = max(1, min(_LOSSES, _BYTES // max(1, size)))
    return max(1, min(most, _SHARED // len(leaves))) if shared else most


def _largest(one: _Batch) -> float:
    """Magnitude of the largest value of a batch, of its tensors of floating-point values."""
    leaves = [leaf for leaf in tree_leaves(one.content) if isinstance(leaf, Tensor) and leaf.numel()]
    return max((float(leaf.detach().abs().max()) for leaf in leaves if leaf.is_floating_point()), default=0.0)


def _first_bad(one: _Batch) -> NonFiniteValue | None:
    for path, leaf in tree_flatten_with_path(one.content)[0]:
        if isinstance(leaf, Tensor):
            name = f"batch{keystr(path)}"
            found = non_finite_value(leaf, step=one.step, batch=one.number, origin="forward", module="", tensor=name)
            if found is not None:
                return found
    return None
