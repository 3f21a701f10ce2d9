"""MultiTaskModule: several outcomes of one row at once, such as click, cart and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from lightning_mp.networks.task_chain import chain_logits
from lightning_mp.schema import FeatureSchema

Batch = dict[str, Tensor]
_METRICS = ("auc", "log_loss")


class MultiTaskModule(pl.LightningModule):
    """Trains any network to tell several outcomes of one row, such as click, cart and order, together.

    The tasks are the labels of the store, in their order (`label: {tasks: [click, cart, order]}`). With `chain` they
    are the steps of a funnel: the network's logit of a step is that of the step given the one before, and what is
    trained, measured and answered is the chance of the step for the row itself, over all rows (ESMM). Rare steps then
    learn from what the frequent ones show, and no rows are left out. Without it each logit stands for itself.

    The loss is binary cross-entropy on logits, in float32 under any precision, summed over the tasks. To change what is
    trained, override `loss`, `score` or `configure_optimizers`.

    Args:
        network: What makes the network from a schema (its class, or `functools.partial` of it), or the network itself.
            `forward(batch)` gives logits (B, T), float32, a column a task in the order of the schema's labels.
        optimizer: What makes the optimizer from the parameters.
        lr_scheduler: What makes a schedule from the optimizer; stepped once an epoch, `WarmupDecayLR` each step.
        weight_decay: As for a `RankingModule`.
        chain: Whether each task is a step after the one before it.
        task_weights: What a task's loss counts for, from 0; 1 where a task is not named.

    Logs:
        `train_loss`: each step, before the step. `val_loss`, `test_loss`: mean over the rows. For each task
        `val_auc_<task>`, `val_log_loss_<task>`, `test_auc_<task>`, `test_log_loss_<task>`: of the row's own outcome;
        NaN, with one warning, where undefined. All but the first at the end of an epoch.

    Raises:
        ConfigurationError: A weight is negative; on use: there is no schema to build the network from or to name the
            tasks, a weight is for no task, the network gives another shape than (B, T), or a checkpoint of another
            class is loaded.
        DataError: On use: a batch cannot be used (no rows, ids that are no integers), or labels are missing or outside
            [0, 1] (on a GPU, in the first batch of an epoch).
        SchemaError: On use: the store's schema is not the checkpoint's.

    Example:
        >>> module = MultiTaskModule(nn.Identity(), task_weights={"order": 2.0})
        >>> torch.round(module.score(torch.zeros(1, 2)), decimals=4)
        tensor([[0.5000, 0.2500]])

    Source:
        Ma et al., Entire Space Multi-Task Model, SIGIR 2018.
    """

    def __init__(
        self,
        network: Callable[[FeatureSchema], nn.Module] | nn.Module,
        *,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        weight_decay: float | None = None,
        chain: bool = True,
        task_weights: dict[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["network"] if isinstance(network, nn.Module) else [])
        plain_hyperparameters(self.hparams)
        self.chain = chain
        self.task_weights = dict(task_weights or {})
        for task, weight in self.task_weights.items():
            if not 0 <= weight < float("inf"):
                problem = f"`task_weights.{task}` must be a number from 0 on, got {weight!r}"
                raise ConfigurationError(problem, "leave it out for 1")
        self.schema: FeatureSchema | None = None
        self.network: nn.Module | None = None
        self.tasks: tuple[str, ...] = ()
        self._factory = None if isinstance(network, nn.Module) else network
        self._optimizer = optimizer
        self._lr_scheduler = lr_scheduler
        self._weight_decay = weight_decay
        self.metrics = nn.ModuleDict()
        self._warned: set[str] = set()
        if isinstance(network, nn.Module):
            self.network = network
            if (known := getattr(network, "schema", None)) is not None:
                self.build(known)

    def build(self, schema: FeatureSchema) -> None:
        """Make the network for `schema`; where it is there already, only compare the schemas.

        Raises:
            ConfigurationError: The network cannot be made from a schema or names its tasks in another order, the schema
                has no label, or a weight is for no task, or all are 0.
            SchemaError: It was built for another schema; feature and field are named.
        """
        tasks = tuple(feature.name for feature in schema.labels)
        if not tasks:
            problem = "the schema has no label, so there is no task"
            raise ConfigurationError(problem, "prepare the store with `label: {tasks: [click, cart, order]}`")
        for task in self.task_weights:
            if task not in tasks:
                problem = f"`task_weights` names `{task}`; the tasks are {', '.join(tasks)}"
                raise ConfigurationError(problem, "use one of these names")
        if not any(self.task_weights.get(task, 1.0) for task in tasks):
            raise ConfigurationError("`task_weights` is 0 for every task: nothing is learned", "raise one of them")
        self.network = built(self.network, self._factory, known=self.schema, schema=schema)
        named = getattr(self.network, "tasks", tasks)
        if isinstance(named, list | tuple) and sorted(map(str, named)) == sorted(tasks) and tuple(named) != tasks:
            problem = f"the network's tasks are {', '.join(named)}, and the labels are {', '.join(tasks)}"
            raise ConfigurationError(problem, "name them in the order of the labels")
        self.schema = schema
        if tasks != self.tasks:
            self.tasks = tasks
            for stage in ("val", "test"):
                kinds = (nn.ModuleList(AUC() for _ in tasks), nn.ModuleList(LogLoss() for _ in tasks))
                self.metrics[stage] = nn.ModuleDict(dict(zip(_METRICS, kinds, strict=True)))

    @override
    def configure_model(self) -> None:
        example = "MultiTaskModule(MMoE(schema, tasks=3))"
        schema = trainers_schema(self._trainer, example=example, network=self.network)
        if schema is not None:
            self.build(schema)

    @override
    def forward(self, batch: Batch) -> Tensor:
        logits: Tensor = require_built(self.network)(batch)
        return logits

    def outcome_logits(self, logits: Tensor) -> Tensor:
        """Logits of each row's own outcomes, (B, T) float32: those of the chain, or the network's as they are."""
        return chain_logits(logits) if self.chain else logits.float()

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Weighted sum over the tasks of the mean binary cross-entropy. Override to train on another.

        Args:
            logits: (B, T), float32: the network's.
            batch: With `labels` (B, T), and `weight` (B,) where rows are weighted.

        Returns:
            A float32 scalar.
        """
        losses = binary_cross_entropy_with_logits(
            self.outcome_logits(logits), batch["labels"].float(), reduction="none"
        )
        weights = [float(self.task_weights.get(task, 1.0)) for task in self.tasks]
        rows = (losses * losses.new_tensor(weights)).sum(dim=1)
        weight = batch.get("weight")
        if weight is None:
            return rows.mean()
        return (rows * weight.float()).mean() / weight.float().mean()

    def score(self, logits: Tensor) -> Tensor:
        """What `predict` and an exported model answer: the chance of each outcome, (B, T) float32. Override it."""
        return torch.sigmoid(self.outcome_logits(logits))

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(*self._logits(batch, batch_idx))
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
        """`score` (B, T) float32, and `row`, `user`, `item` (B,) int64 as far as the batch has them."""
        keys = {"row": "row", "user": "group", "item": "target"}
        score = self.score(self(batch).float())
        return {"score": score, **{name: batch[key] for name, key in keys.items() if key in batch}}

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

    def _logits(self, batch: Batch, batch_idx: int) -> tuple[Tensor, Batch]:
        """Logits (B, T), and the batch with its labels in that shape."""
        require_usable(batch, require_built(self.network), self.schema)
        if not self.tasks:
            problem = "the names of the tasks are not known: the network has no `schema`, nor has the datamodule"
            raise ConfigurationError(problem, "call `build(schema)`, or let the network keep its `schema`")
        labels, logits = labels_of(batch), self(batch)
        labels = labels.unsqueeze(1) if labels.dim() == 1 and len(self.tasks) == 1 else labels
        require_logits(logits, labels, f"let `forward` return (B, {len(self.tasks)}): {', '.join(self.tasks)}")
        # A look at a GPU's labels makes it wait, so there only the first batch of an epoch is looked at.
        if batch_idx == 0 or labels.device.type == "cpu":
            check_labels(labels, ", ".join(self.tasks))
        return logits.float(), {**batch, "labels": labels}

    def _evaluate(self, batch: Batch, batch_idx: int, stage: str) -> None:
        logits, batch = self._logits(batch, batch_idx)
        labels = batch["labels"]
        self.log(f"{stage}_loss", self.loss(logits, batch), batch_size=len(labels), sync_dist=True)
        outcomes = self.outcome_logits(logits)
        for kind in _METRICS:
            for task, metric in enumerate(self._metrics(stage, kind)):
                metric.update(outcomes[:, task], labels[:, task])

    def _log_metrics(self, stage: str) -> None:
        for kind in _METRICS:
            found = dict(zip((f"{stage}_{kind}_{t}" for t in self.tasks), self._metrics(stage, kind), strict=True))
            log_epoch_metrics(self, found, self._warned, prog_bar=tuple(found) if kind == "auc" else ())

    def _metrics(self, stage: str, kind: str) -> Any:
        return self.metrics[stage][kind]  # type: ignore[index]  # a ModuleDict in a ModuleDict
