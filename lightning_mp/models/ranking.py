"""RankingModule: a click or a preference, row by row, with any network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.auc import AUC
from lightning_mp.metrics.log_loss import LogLoss
from lightning_mp.models import checkpoint_record
from lightning_mp.models.building import built, plain_hyperparameters, require_built, trainers_schema
from lightning_mp.models.epoch_metrics import log_epoch_metrics
from lightning_mp.models.optimization import optimization
from lightning_mp.models.usable_batch import check_labels, labels_of, require_logits, require_usable
from lightning_mp.schema import FeatureSchema

Batch = dict[str, Tensor]


class RankingModule(pl.LightningModule):
    """Trains any network to say how likely a click is, or how strong a preference, row by row.

    The loss is binary cross-entropy on logits, in float32 under any precision. A preference in [0, 1] is a soft target
    of the same loss: its best answer is the mean preference of such rows. To change what is trained, override `loss`,
    `score` or `configure_optimizers`.

    Sizes come from the data: a network class is built from the schema of the Trainer's datamodule, or from that of the
    checkpoint.

    Args:
        network: What makes the network from a schema (its class, or `functools.partial` of it), or the network itself.
            `forward(batch)` gives logits (B,), float32.
        optimizer: What makes the optimizer from the parameters.
        lr_scheduler: What makes a schedule from the optimizer; stepped once an epoch, `WarmupDecayLR` each step.
        weight_decay: Weight decay of the matrices, in place of the optimizer's own for all parameters; embeddings,
            biases and normalisations then have none.
        task: `"click"`: labels are 0 or 1. `"preference"`: anything between; AUC then tells rows with a label
            above 0 from the others.

    Logs:
        `train_loss`: each step, before the step. `val_loss`, `test_loss`: mean over the rows. `val_log_loss`,
        `test_log_loss`: the same from float64 sums, whatever `loss` was overridden with. `val_auc`, `test_auc`: NaN,
        with one warning, where it is undefined. All but the first at the end of an epoch.

    Raises:
        ConfigurationError: On use: there is no schema to build the network from, the network gives another shape than
            (B,), or a checkpoint of another class is loaded.
        DataError: On use: labels are missing, or outside [0, 1] (on a GPU, in the first batch of an epoch).
        SchemaError: On use: the store's schema is not the checkpoint's.

    Example:
        >>> from functools import partial
        >>> from lightning_mp.networks.dcn_v2 import DCNv2
        >>> module = RankingModule(partial(DCNv2, hidden=(64, 32)), optimizer=partial(torch.optim.AdamW, lr=2e-3))
        >>> module.schema is None
        True
    """

    def __init__(
        self,
        network: Callable[[FeatureSchema], nn.Module] | nn.Module,
        *,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        weight_decay: float | None = None,
        task: Literal["click", "preference"] = "click",
    ) -> None:
        super().__init__()
        if task not in ("click", "preference"):
            raise ConfigurationError(f"`task` must be 'click' or 'preference', got {task!r}", "leave it out for clicks")
        self.save_hyperparameters(ignore=["network"] if isinstance(network, nn.Module) else [])
        plain_hyperparameters(self.hparams)
        self.task = task
        self.schema: FeatureSchema | None = None
        self.network: nn.Module | None = None
        self._factory = None if isinstance(network, nn.Module) else network
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self._weight_decay = weight_decay
        self.metrics = nn.ModuleDict({stage: nn.ModuleDict(_metrics()) for stage in ("val", "test")})
        self._warned: set[str] = set()
        if isinstance(network, nn.Module):
            self.network, self.schema = network, getattr(network, "schema", None)

    def build(self, schema: FeatureSchema) -> None:
        """Make the network for `schema`; where it is there already, only compare the schemas.

        Raises:
            ConfigurationError: The network cannot be made from a schema.
            SchemaError: It was built for another schema; feature and field are named.
        """
        self.network = built(self.network, self._factory, known=self.schema, schema=schema)
        self.schema = schema

    @override
    def configure_model(self) -> None:
        schema = trainers_schema(self._trainer, example="RankingModule(DCNv2(schema))", network=self.network)
        if schema is not None:
            self.build(schema)

    @override
    def forward(self, batch: Batch) -> Tensor:
        logits: Tensor = require_built(self.network)(batch)
        return logits

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean binary cross-entropy, rows weighted by `weight` where the batch has it. Override to train on another.

        Args:
            logits: (B,), float32.
            batch: With `labels` (B,).

        Returns:
            A float32 scalar.
        """
        weight = batch.get("weight")
        losses = binary_cross_entropy_with_logits(logits, batch["labels"].float(), weight=weight, reduction="none")
        mean: Tensor = losses.mean() if weight is None else losses.mean() / weight.float().mean()
        return mean

    def score(self, logits: Tensor) -> Tensor:
        """What `predict` and an exported model answer: the sigmoid, (B,) float32 in [0, 1]. Override for another."""
        return torch.sigmoid(logits)

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(self._logits(batch, batch_idx), batch)
        self.log("train_loss", loss.detach(), prog_bar=True)
        return loss

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, batch_idx, "val")

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, batch_idx, "test")

    @override
    def predict_step(self, batch: Batch, batch_idx: int) -> Batch:
        """`score` (B,) float32, and `row`, `user`, `item` (B,) int64 as far as the batch has them."""
        logits = self(batch).float()
        keys = {"row": "row", "user": "group", "item": "target"}
        return {"score": self.score(logits), **{name: batch[key] for name, key in keys.items() if key in batch}}

    @override
    def on_validation_epoch_end(self) -> None:
        self._log_metrics("val")

    @override
    def on_test_epoch_end(self) -> None:
        self._log_metrics("test")

    @override
    def configure_optimizers(self) -> Any:
        """The optimizer over all parameters, and the schedule when there is one."""
        return optimization(self, self._optimizer, self._lr_scheduler, weight_decay=self._weight_decay)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint_record.write(checkpoint, self, schema=self.schema, network=self.network, trainer=self._trainer)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        schema = checkpoint_record.read(checkpoint, self, known=self.schema)
        if schema is not None:
            self.build(schema)

    def _logits(self, batch: Batch, batch_idx: int) -> Tensor:
        require_usable(batch, require_built(self.network), self.schema)
        logits, labels = self(batch), labels_of(batch)
        require_logits(logits, labels, "let `forward` return one logit a row, shape (B,)")
        # A look at a GPU's labels makes it wait, so there only the first batch of an epoch is looked at.
        if batch_idx == 0 or labels.device.type == "cpu":
            check_labels(labels, self.task)
        wide: Tensor = logits.float()
        return wide

    def _evaluate(self, batch: Batch, batch_idx: int, stage: str) -> None:
        logits, labels = self._logits(batch, batch_idx), batch["labels"]
        self.log(f"{stage}_loss", self.loss(logits, batch), batch_size=len(labels), sync_dist=True)
        self._metric(stage, "log_loss").update(logits, labels)
        self._metric(stage, "auc").update(logits, labels if self.task == "click" else (labels > 0).float())

    def _log_metrics(self, stage: str) -> None:
        found = {f"{stage}_{name}": self._metric(stage, name) for name in ("auc", "log_loss")}
        log_epoch_metrics(self, found, self._warned, prog_bar=(f"{stage}_auc",))

    def _metric(self, stage: str, name: str) -> Any:
        return self.metrics[stage][name]  # type: ignore[index]  # a ModuleDict in a ModuleDict


def _metrics() -> dict[str, nn.Module]:
    return {"auc": AUC(), "log_loss": LogLoss()}
