"""Run a prediction and hand on each batch as it comes, so that only one is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from typing_extensions import override


def each_prediction(
    trainer: pl.Trainer,
    model: pl.LightningModule,
    receive: Callable[[Any], None],
    *,
    datamodule: pl.LightningDataModule | None,
    ckpt_path: str | None = None,
    weights_only: bool | None = None,
) -> None:
    """Run `trainer.predict` and give `receive` what `predict_step` returned, batch by batch.

    Args:
        trainer: Its limits hold.
        model: What predicts.
        receive: Called after each batch.
        datamodule: Of `trainer.predict`, as the next two.
        ckpt_path: A checkpoint to load first.
        weights_only: Whether the checkpoint may hold nothing but plain values and tensors.
    """
    receiver, callbacks = _Receiver(receive), callbacks_of(trainer)
    callbacks.append(receiver)
    try:
        trainer.predict(
            model,
            datamodule=datamodule,
            ckpt_path=ckpt_path,
            weights_only=weights_only,
            return_predictions=False,
        )
    finally:
        callbacks.remove(receiver)


def callbacks_of(trainer: pl.Trainer) -> list[Callback]:
    """The Trainer's own list of callbacks."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it elsewhere
    return callbacks


class _Receiver(Callback):
    def __init__(self, receive: Callable[[Any], None]) -> None:
        self._receive = receive

    @override
    def on_predict_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._receive(outputs)
