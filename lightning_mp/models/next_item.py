"""NextItemModule: what a user takes next, from the items before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

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
from lightning_mp.models.cold_vectors import cold_vectors
from lightning_mp.models.idle_batches import IdleBatches
from lightning_mp.models.list_scorer import Scorer, known_items, list_scorer
from lightning_mp.models.next_item_queries import NextItemQueries
from lightning_mp.models.optimization import optimization
from lightning_mp.models.ranked_items import Asked, log_ranking, trainers_store
from lightning_mp.models.usable_batch import any_taken, require_usable, taken_rows, with_own_target
from lightning_mp.networks.drawn_items import drawn_items
from lightning_mp.networks.generalised_bce import generalised_bce
from lightning_mp.networks.next_item_logits import next_item_logits
from lightning_mp.schema import FeatureSchema

Batch = dict[str, Tensor]
Objective = Literal["softmax", "sampled_softmax", "gbce"]


class NextItemModule(pl.LightningModule):
    """Trains a network to say what a user takes next, from the items taken before.

    It trains on `train_on: sequences` of the data module, where each place of a user's items has the next one as its
    target, or on rows: a row's own item after its `history`; rows whose first label is 0 are passed over. Logits and
    loss are float32 under any precision. Negatives come from the seed and the step alone, also in a resumed run.

    What is logged is full ranking, no sample: after the history of each row of the part all items of the store are
    ranked, and relevant is the row's own. Override `loss`, `score` or `configure_optimizers` to change what is trained.

    Args:
        network: The network, or what makes it from a schema. `encode(history)` gives the states (B, L, E),
            `item_vectors()` (V, E), both float32, `forward(batch)` the logits (B,) of `target` after `history`.
        optimizer: As for a `RankingModule`, as the next.
        lr_scheduler: What makes a schedule from the optimizer.
        objective: `"softmax"` over all items; `"sampled_softmax"` over drawn ones, corrected for their share; `"gbce"`:
            binary cross-entropy over drawn ones, calibrated (gSASRec). The first is best where the items are few.
        negatives: Items drawn for each sequence and step; one that is the target counts for nothing.
        calibration: Of `"gbce"`, in [0, 1].
        seed: Of the draws.
        k: Length of the lists that are logged.
        exclude_seen: Leave out of the lists, and of what is asked for, what the user took before, as for films.
        cold_start: As for a `RetrievalModule`; left out, items that training did not know come last.

    Logs:
        `train_loss`: each step, before the step. `val_loss`, `test_loss`: the same loss of the rows of the part.
        `val_ndcg`, `val_recall`, `val_mrr`, `test_ndcg`, `test_recall`, `test_mrr`: means over the rows, of lists of
        `k` (`mrr`: of the whole list), where the datamodule has a store.

    Raises:
        ConfigurationError: A setting is outside its range; on use: the network cannot be built or lacks a method, the
            items have no `id`, or a checkpoint of another class is loaded.
        DataError: On use: a batch has no `history`, or ids that are no integers; a run has no known target at all.
        SchemaError: On use: the store's schema is not the checkpoint's.

    Example:
        >>> from functools import partial
        >>> from lightning_mp.networks.sasrec import SASRec
        >>> module = NextItemModule(partial(SASRec, embedding_dim=32), objective="gbce", negatives=128)

    Source:
        Kang and McAuley, SASRec, ICDM 2018. Petrov and Macdonald, gSASRec, RecSys 2023.
    """

    def __init__(
        self,
        network: Callable[[FeatureSchema], nn.Module] | nn.Module,
        *,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        objective: Objective = "sampled_softmax",
        negatives: int = 256,
        calibration: float = 0.75,
        seed: int = 0,
        k: int = 10,
        exclude_seen: bool = False,
        cold_start: list[str] | None = None,
    ) -> None:
        super().__init__()
        if objective not in get_args(Objective):
            problem = f"`objective` must be one of {', '.join(get_args(Objective))}, got {objective!r}"
            raise ConfigurationError(problem, "leave it out")
        if negatives < 1 or k < 1 or not 0 <= calibration <= 1:
            problem = f"`negatives` is {negatives}, `k` {k} and `calibration` {calibration}"
            raise ConfigurationError(problem, "use at least 1, at least 1, and a number in [0, 1]")
        self.save_hyperparameters(ignore=["network"] if isinstance(network, nn.Module) else [])
        building.plain_hyperparameters(self.hparams)
        self.objective, self.drawn, self.calibration, self.seed = objective, negatives, calibration, seed
        self.k, self.exclude_seen, self.cold_start = k, exclude_seen, list(cold_start or [])
        self.schema: FeatureSchema | None = None
        self.network: nn.Module | None = None
        self._factory = None if isinstance(network, nn.Module) else network
        self._optimizer, self._lr_scheduler = optimizer, lr_scheduler
        self._size, self._queries, self._idle = 1, NextItemQueries(), IdleBatches()
        if isinstance(network, nn.Module):
            self.network = network
            if (known := getattr(network, "schema", None)) is not None:
                self.build(known)

    def build(self, schema: FeatureSchema) -> None:
        """Make the network for `schema`; where it is there already, only compare the schemas.

        Raises:
            ConfigurationError: It cannot be made, or lacks a method; no `id` or no `cold_start` among the items.
            SchemaError: It was built for another schema; feature and field are named.
        """
        require_likeness(schema, self.cold_start)
        self._size = schema.ids[item_place(schema)].vocabulary_size or 1
        self.network = building.built(self.network, self._factory, known=self.schema, schema=schema)
        building.require_methods(self.network, "encode(history)", "item_vectors()", like="SASRec")
        self.schema = schema

    @override
    def configure_model(self) -> None:
        schema = building.trainers_schema(self._trainer, example="NextItemModule(SASRec(schema))", network=self.network)
        if schema is not None:
            self.build(schema)

    @override
    def forward(self, batch: Batch) -> Tensor:
        """Logits (B,) of each row's own item after its history; in a batch without `ids`, of `target`."""
        logits: Tensor = building.require_built(self.network)(with_own_target(batch, self.schema))
        return logits

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:  # noqa: ARG002 (an override may want the batch)
        """Mean loss of the places. Override to train on another.

        Args:
            logits: (P, 1 + N) float32, the target's first; minus infinity is no negative.
            batch: As it came.
        """
        if self.objective == "gbce":
            return generalised_bce(logits, items=self._size - 1, calibration=self.calibration).mean()
        return cross_entropy(logits, torch.zeros_like(logits[:, 0], dtype=torch.int64))

    def score(self, logits: Tensor) -> Tensor:
        """What `predict` and an exported model answer of a pair: the sigmoid, which keeps the order. Override it."""
        return torch.sigmoid(logits)

    def catalogue_vectors(self, catalogue: ItemCatalogue) -> Tensor:
        """Vectors of all items of a store, (C, E) float32; zero for unknown ones unless `cold_start` fills them."""
        vectors: Tensor = building.require_built(self.network).item_vectors()  # type: ignore[operator]  # a method
        rows = torch.from_numpy(catalogue.row).to(self.device)
        return cold_vectors(vectors.float()[rows], catalogue, self.cold_start)

    def list_scorer(self, store: FeatureStore, version: int | None = None, *, part: str = "test") -> Scorer:
        """A function from codes of users (u,) to their scores of all items of the store, (u, C), as `part` begins."""
        catalogue, network = item_catalogue(store, version), building.require_built(self.network)
        return list_scorer(
            store, part, version, device=self.device, vectors=lambda batch: network.encode(batch["history"])[:, -1],  # type: ignore[operator]  # a method, says `build`
            items=self.catalogue_vectors(catalogue), candidates=known_items(catalogue, cold=bool(self.cold_start)),
        )  # fmt: skip

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        step = self.current_epoch * 1_000_003 + batch_idx
        if not any_taken(batch) or not len(logits := self._place_logits(taken := taken_rows(batch), step=step)):
            return self._idle.loss(self, batch)
        self._idle.learnt(left_out=len(taken["history"]) - len(logits) if "ids" in taken else 0)
        loss = self.loss(logits, batch)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(logits))
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
        return optimization(self, self._optimizer, self._lr_scheduler)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint_record.write(checkpoint, self, schema=self.schema, network=self.network, trainer=self._trainer)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        schema = checkpoint_record.read(checkpoint, self, known=self.schema)
        if schema is not None:
            self.build(schema)

    def _place_logits(self, batch: Batch, *, step: int) -> Tensor:
        batch = with_own_target(batch, self.schema)
        network: Any = building.require_built(self.network)
        require_usable(batch, network, self.schema)
        states, vectors = network.encode(batch["history"]), network.item_vectors()
        drawn = batch.get("negatives")
        if drawn is None and self.objective != "softmax":
            draw = {"size": self._size, "seed": self.seed, "step": step, "place": self.global_rank}
            drawn = drawn_items(len(states), self.drawn, **draw)
        return next_item_logits(states, batch["target"], vectors, drawn, correct=self.objective == "sampled_softmax")

    def _evaluate(self, batch: Batch, batch_idx: int, stage: str) -> None:
        if not any_taken(batch):
            return
        batch = taken_rows(batch)
        logits = self._place_logits(batch, step=-1 - batch_idx)
        if len(logits):
            self.log(f"{stage}_loss", self.loss(logits, batch), batch_size=len(logits), sync_dist=True)
        if "row" in batch:
            self._queries.add(batch["row"], self.network.encode(batch["history"])[:, -1])  # type: ignore[union-attr,operator]  # a method

    def _rank(self, stage: str, part: str) -> None:
        held, queries = trainers_store(self._trainer), self._queries.take()
        if held is None or self.trainer.sanity_checking:
            return
        catalogue = item_catalogue(*held)
        vectors = self.catalogue_vectors(catalogue).detach().cpu().numpy()
        known = known_items(catalogue, cold=bool(self.cold_start))
        asked = Asked(k=self.k, exclude_seen=self.exclude_seen, version=held[1])
        found = queries.ranked(held[0], part, asked, vectors=vectors, known=known) if queries else None
        log_ranking(self, stage, found)
