"""Learning rates of a run, kept where they tell something."""

from __future__ import annotations

import lightning.pytorch as pl
from torch.optim import Optimizer

from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.callbacks.precision_report_record import RunRecord

_MOVED = 0.02


class RateRecorder:
    """Keeps a rate on logging steps, and where it moved by more than 2 %, then with that of the step before.

    Args:
        record: Where `lr-<Optimizer>` goes.
        trainer: Whose steps are followed.
    """

    def __init__(self, record: RunRecord, trainer: pl.Trainer) -> None:
        self._record, self._trainer = record, trainer
        self._names: dict[int, str] = {}
        self._last: dict[str, tuple[int, float, int]] = {}

    def add(self, optimizer: Optimizer, step: int, rate: float) -> None:
        """Take the rate of a step.

        Args:
            optimizer: Whose it is.
            step: Number of the step.
            rate: The largest of its groups.
        """
        name = self._name(optimizer)
        before, last, kept = self._last.get(name, (step, 0.0, step))
        moved = abs(rate - last) > _MOVED * last
        if moved and before > kept:
            self._record.add(name, before, last)
        if moved or is_logging_step(self._trainer):
            self._record.add(name, step, rate)
            kept = step
        self._last[name] = (step, rate, kept)

    def _name(self, optimizer: Optimizer) -> str:
        if id(optimizer) not in self._names:
            kind = type(optimizer).__name__
            place = sum(name.startswith(f"lr-{kind}") for name in self._names.values())
            self._names[id(optimizer)] = f"lr-{kind}" if not place else f"lr-{kind}-{place}"
        return self._names[id(optimizer)]
