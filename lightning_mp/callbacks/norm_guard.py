"""Keep a bad batch out of the running statistics of normalisation layers."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import LightningMPWarning
from lightning_mp.precision.norm_snapshots import NormSnapshots


class NormGuard(Callback):
    """Leave no NaN or infinity of a bad batch in the running statistics of normalisation layers.

    A gradient scaler skips the step of a batch with a NaN or an overflow, but batch normalisation has taken the batch
    into its running mean and variance by then: they stay NaN, and with them every validation, though no weight was
    harmed. Here each training batch ends with a copy of the statistics and a check on the device: where one is not
    finite, all those of the last batch that left them finite are put back, as soon as the device has answered. Layers
    of batch and instance normalisation count, with and without `torch.compile`. A validation, a checkpoint and the end
    of the run see guarded statistics too. A batch that leaves them finite is left as it is, skipped or not.

    Attributes:
        restored: Training batches whose statistics were put back.

    Logs:
        `norm_guard/restored`: training batches whose statistics were put back, on the Trainer's logging steps.

    Example:
        >>> trainer = pl.Trainer(callbacks=[NormGuard()], logger=False, enable_checkpointing=False)
    """

    def __init__(self) -> None:
        self.restored = 0
        self._snapshots: NormSnapshots | None = None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.restored = 0
        self._snapshots = NormSnapshots(pl_module)
        self._snapshots.take()

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._settle(wait=False)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._snapshots is None:
            return
        self._snapshots.take()
        self._settle(wait=False)
        if is_logging_step(trainer):
            pl_module.log("norm_guard/restored", float(self.restored))

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._settle(wait=True)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._snapshots is not None:
            self._snapshots.take()  # it may be saved before this batch's turn came
        self._settle(wait=True)  # until it is written, the checkpoint holds the buffers themselves

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._settle(wait=True)
        self._snapshots = None

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._snapshots = None

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._snapshots = None

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__, run=["_snapshots"])

    def _settle(self, *, wait: bool) -> None:
        if self._snapshots is None:
            return
        self._snapshots.settle(wait=wait)
        if self._snapshots.restored > self.restored:
            if self.restored == 0:
                rank_zero_warn(
                    "a training batch left running statistics of a normalisation that are not finite; `NormGuard` put "
                    "those of the batch before back\n\nhint: `NonFiniteMonitor` names the rows and columns it began in",
                    category=LightningMPWarning,
                )
            self.restored = self._snapshots.restored
