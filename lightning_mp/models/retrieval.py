"""RetrievalModule: users and items as vectors, trained so that a user's own items come first among all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from lightning_mp.data.item_catalogue import ItemCatalogue, item_catalogue, item_place, require_likeness
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError
from lightning_mp.models import building, checkpoint_record
from lightning_mp.models.catalogue_batches import catalogue_batches
from lightning_mp.models.cold_vectors import cold_vectors
from lightning_mp.models.idle_batches import IdleBatches
from lightning_mp.models.in_batch_negatives import InBatchNegatives
from lightning_mp.models.list_scorer import Scorer, list_scorer, users_of
from lightning_mp.models.optimization import optimization
from lightning_mp.models.ranked_items import Asked, log_ranking, rank_users, trainers_store
from lightning_mp.models.usable_batch import any_taken, require_usable, taken_rows
from lightning_mp.schema import FeatureSchema

Batch = dict[str, Tensor]


class RetrievalModule(pl.LightningModule):
    """Trains two towers so that, among all items, those that a user took come first.

    Each row is a user and an item that was taken (`label: {taken: order}`; rows whose label is 0 are passed over). The
    negatives are the items of the other rows of the batch, so large batches teach more, and where wanted those of
    earlier batches. How often an item comes up is counted and made up for (`log_q`): without that popular items, which
    are negatives most often, are pushed down, and the lists are far worse. Scores, log-sum-exp and loss are float32
    under any precision.

    What is logged is full ranking, no sample: all items of the store are ranked for each user of the part, as its first
    row there shows it, and relevant is what the user took in it. To train otherwise override `loss`, `score` or
    `configure_optimizers`.

    Args:
        network: The network, or what makes it from a schema. `user_vectors(batch)` and `item_vectors(batch)` give
            (B, E) float32, `forward(batch)` the logits (B,) of the rows' own pairs; products are divided by its
            `temperature`, where it has one.
        optimizer: As for a `RankingModule`, as the next two.
        lr_scheduler: What makes a schedule from the optimizer.
        weight_decay: Of the matrices.
        log_q: Subtract from each candidate's logit the logarithm of its share of the training rows.
        cached_negatives: Item vectors of earlier batches that serve as negatives too; 0 for none.
        k: Length of the lists that are logged.
        exclude_seen: Leave out of the lists, and of what is asked for, what the user took before the part. Say false
            where users come back to items.
        cold_start: Categorical features of the items, from the narrowest on, such as `[brand, category]`. An item whose
            id training did not know gets the mean vector of the known items that share the first of them that any
            shares. Left out, its vector is what the tower makes of the unknown id and its other features.

    Logs:
        `train_loss`: each step, before the step. `val_loss`, `test_loss`: the same loss within the batches of the part,
        without cached negatives. `val_ndcg`, `val_recall`, `val_mrr`, `test_ndcg`, `test_recall`, `test_mrr`: means
        over the users, lists of `k` (the last of the whole list), where the datamodule has a store; NaN where no user
        took anything.

    Raises:
        ConfigurationError: A number is below its limit; on use: the network cannot be built or lacks a tower, there is
            no feature of kind `id` and role `item`, or a checkpoint of another class is loaded.
        DataError: On use: a batch has ids that are no integers, or a single row; no batch of a run has two taken rows.
        SchemaError: On use: the store's schema is not the checkpoint's.

    Example:
        >>> from functools import partial
        >>> from lightning_mp.networks.two_tower import TwoTower
        >>> module = RetrievalModule(partial(TwoTower, output_dim=16), cached_negatives=1024)

    Source:
        Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations, RecSys 2019.
    """

    def __init__(
        self,
        network: Callable[[FeatureSchema], nn.Module] | nn.Module,
        *,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        weight_decay: float | None = None,
        log_q: bool = True,
        cached_negatives: int = 0,
        k: int = 10,
        exclude_seen: bool = True,
        cold_start: list[str] | None = None,
    ) -> None:
        super().__init__()
        for name, value, least in (("cached_negatives", cached_negatives, 0), ("k", k, 1)):
            if value < least:
                raise ConfigurationError(f"`{name}` must be at least {least}, got {value}", "leave it out")
        self.save_hyperparameters(ignore=["network"] if isinstance(network, nn.Module) else [])
        building.plain_hyperparameters(self.hparams)
        self.log_q, self._cached = log_q, cached_negatives
        self.k, self.exclude_seen, self.cold_start = k, exclude_seen, list(cold_start or [])
        self.schema: FeatureSchema | None = None
        self.network: nn.Module | None = None
        self.negatives: InBatchNegatives | None = None
        self._factory = None if isinstance(network, nn.Module) else network
        self._optimizer, self._lr_scheduler = optimizer, lr_scheduler
        self._weight_decay, self._idle = weight_decay, IdleBatches()
        if isinstance(network, nn.Module):
            self.network = network
            if (known := getattr(network, "schema", None)) is not None:
                self.build(known)

    def build(self, schema: FeatureSchema) -> None:
        """Make the network for `schema`; where it is there already, only compare the schemas.

        Raises:
            ConfigurationError: It cannot be made, or lacks a tower; no `id` or no `cold_start` among the items.
            SchemaError: It was built for another schema; feature and field are named.
        """
        require_likeness(schema, self.cold_start)
        item = schema.ids[item_place(schema)]
        self.network = building.built(self.network, self._factory, known=self.schema, schema=schema)
        building.require_methods(self.network, "user_vectors(batch)", "item_vectors(batch)", like="TwoTower")
        self.schema = schema
        if self.negatives is None:
            self.negatives = InBatchNegatives(item.vocabulary_size or 1, log_q=self.log_q, cached=self._cached)

    @override
    def configure_model(self) -> None:
        example = "RetrievalModule(TwoTower(schema))"
        schema = building.trainers_schema(self._trainer, example=example, network=self.network)
        if schema is not None:
            self.build(schema)

    @override
    def forward(self, batch: Batch) -> Tensor:
        logits: Tensor = building.require_built(self.network)(batch)
        return logits

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Softmax cross-entropy of each row's own item among the candidates, a scalar. Override to train on another.

        Args:
            logits: (B, C) float32, corrected; row i's own item is candidate i, minus infinity is no candidate.
            batch: With `weight` (B,) where rows are weighted.
        """
        own = torch.arange(len(logits), device=logits.device)
        losses: Tensor = cross_entropy(logits, own, reduction="none")
        weight = batch.get("weight")
        return losses.mean() if weight is None else (losses * weight.float()).mean() / weight.float().mean()

    def score(self, logits: Tensor) -> Tensor:
        """What `predict` and an exported model answer of a pair: the sigmoid, which keeps the order. Override it."""
        return torch.sigmoid(logits)

    def catalogue_vectors(self, catalogue: ItemCatalogue) -> Tensor:
        """Vectors of all items of a store, (C, E) float32, those of unknown ids as `cold_start` says."""
        network: Any = building.require_built(self.network)
        batches = catalogue_batches(catalogue, self.device)
        vectors = torch.cat([network.item_vectors(batch).float() for batch in batches])
        return cold_vectors(vectors, catalogue, self.cold_start)

    def list_scorer(self, store: FeatureStore, version: int | None = None, *, part: str = "test") -> Scorer:
        """A function from codes of users (u,) to their scores of all items of the store, (u, C), as `part` begins."""
        catalogue = item_catalogue(store, version)
        return list_scorer(
            store, part, version, vectors=building.require_built(self.network).user_vectors,  # type: ignore[arg-type]  # a method, says `build`
            items=self.catalogue_vectors(catalogue), candidates=catalogue.present, device=self.device,
        )  # fmt: skip

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        require_usable(batch, building.require_built(self.network), self.schema)
        if self.negatives is not None and not self.negatives.enough(batch):
            return self._idle.loss(self, batch)
        self._idle.learnt()
        batch = taken_rows(batch)
        loss = self.loss(self._candidates(batch, training=True), batch)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(batch["ids"]))
        return loss

    @override
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    @override
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    @override
    def predict_step(self, batch: Batch, batch_idx: int) -> Batch:
        """`score` (B,) float32, and `row`, `user`, `item` (B,) int64 as far as the batch has them."""
        keys = {"row": "row", "user": "group", "item": "target"}
        score = self.score(self(batch).float())
        return {"score": score, **{name: batch[key] for name, key in keys.items() if key in batch}}

    @override
    def on_train_epoch_end(self) -> None:
        self._idle.tell(self)

    @override
    def on_validation_epoch_end(self) -> None:
        self._rank("val", "validation")

    @override
    def on_test_epoch_end(self) -> None:
        self._rank("test", "test")

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
        if self.negatives is not None:
            self.negatives.reserve(checkpoint["state_dict"], "negatives.")

    def _candidates(self, batch: Batch, *, training: bool) -> Tensor:
        assert self.schema is not None
        assert self.negatives is not None
        own = batch["ids"][:, item_place(self.schema)]
        logits: Tensor = self.negatives(building.require_built(self.network), batch, own, training=training)
        return logits

    def _evaluate(self, batch: Batch, stage: str) -> None:
        if not any_taken(batch):
            return
        batch = taken_rows(batch)
        if len(batch["ids"]) > 1:
            loss = self.loss(self._candidates(batch, training=False), batch)
            self.log(f"{stage}_loss", loss, batch_size=len(batch["ids"]), sync_dist=True)

    def _rank(self, stage: str, part: str) -> None:
        held = trainers_store(self._trainer)
        if held is None or self.trainer.sanity_checking:
            return
        store, version = held
        asked = Asked(k=self.k, exclude_seen=self.exclude_seen, version=version)
        users, score = users_of(store, part, version), self.list_scorer(store, version, part=part)
        log_ranking(self, stage, rank_users(store, part, asked, users=users, score=score))
