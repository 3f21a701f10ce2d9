"""The modules of the package on MovieLens 100K: what `ml100k.py` sets beside the baselines.

Each function trains one module on a split and returns what scores: all items for codes of users, or rows.
"""

from __future__ import annotations

import csv
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch
from ml100k_data import Ratings, table

from lightning_mp.models.next_item import NextItemModule
from lightning_mp.models.retrieval import RetrievalModule
from lightning_mp.networks.sasrec import SASRec
from lightning_mp.networks.two_tower import TwoTower
from lightning_mp.running.evaluate import evaluate
from lightning_mp.running.metrics_table import MetricsTable
from lightning_mp.schema import Feature, FeatureSchema

Scorer = Callable[[np.ndarray], np.ndarray]


class Batches:
    """Batches of rows in an order that is drawn anew each epoch."""

    def __init__(self, columns: dict[str, torch.Tensor], size: int, seed: int) -> None:
        self.columns, self.size = columns, size
        self.rows = len(next(iter(columns.values())))
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return int(np.ceil(self.rows / self.size))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for rows in torch.randperm(self.rows, generator=self.generator).split(self.size):
            if len(rows) > 1:
                yield {name: column[rows] for name, column in self.columns.items()}


def trained(module: pl.LightningModule, batches: Batches, epochs: int) -> pl.LightningModule:
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        trainer.fit(module, batches)
    return module.eval()


def id_feature(name: str, role: str, size: int) -> Feature:
    return Feature(
        name=name, kind="id", role=role, source_dtype="int64", stored_dtype="int32", vocabulary_size=size + 1
    )


def two_tower(train: Ratings, *, log_q: bool, seed: int, epochs: int = 4, **options: object) -> Scorer:
    """Vectors of users and items from their ids alone, in-batch softmax; vocabulary rows are codes + 1.

    The four epochs were chosen on a split of the training rows: towers that know nothing but ids overfit soon.
    """
    pl.seed_everything(seed, verbose=False)
    schema = FeatureSchema(features=(id_feature("user", "user", train.users), id_feature("item", "item", train.items)))
    settings = {"embedding_dim": 64, "hidden": (), "output_dim": 64, "temperature": 0.1, **options}
    module = RetrievalModule(
        TwoTower(schema, **settings),
        optimizer=partial(torch.optim.Adam, lr=3e-3),
        log_q=log_q,
    )
    ids = torch.from_numpy(np.stack([train.user + 1, train.item + 1], axis=1))
    trained(module, Batches({"ids": ids}, 512, seed), epochs)
    with torch.no_grad():
        every = torch.zeros((train.items, 2), dtype=torch.int64)
        every[:, 1] = torch.arange(1, train.items + 1)
        items = module.network.item_vectors({"ids": every})

        def score(users: np.ndarray) -> np.ndarray:
            asked = torch.zeros((len(users), 2), dtype=torch.int64)
            asked[:, 0] = torch.from_numpy(users) + 1
            with torch.no_grad():
                return (module.network.user_vectors({"ids": asked}) @ items.T).numpy()

    return score


def sasrec(train: Ratings, *, seed: int, epochs: int = 60, length: int = 50, **settings: object) -> Scorer:
    """The next film from the films before; vocabulary rows are codes + 1."""
    pl.seed_everything(seed, verbose=False)
    schema = FeatureSchema(features=(id_feature("item", "item", train.items),))
    network = {"max_length": length, "embedding_dim": 64, "blocks": 2, "heads": 1, "dropout": 0.3}
    network |= {name: value for name, value in settings.items() if name in network}
    options = {name: value for name, value in settings.items() if name not in network}
    module = NextItemModule(SASRec(schema, **network), optimizer=partial(torch.optim.Adam, lr=1e-3), **options)
    order = np.lexsort((np.arange(len(train.user)), train.time, train.user))
    sequences = np.split(train.item[order] + 1, np.flatnonzero(np.diff(train.user[order])) + 1)
    history = np.zeros((train.users, length), np.int64)
    target, newest = np.zeros_like(history), np.zeros_like(history)
    for user, items in zip(np.unique(train.user), sequences, strict=True):
        put(history[user], items[:-1])
        put(target[user], items[1:])
        put(newest[user], items)
    columns = {"history": torch.from_numpy(history), "target": torch.from_numpy(target)}
    trained(module, Batches(columns, 128, seed), epochs)

    def score(users: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            states = module.network.encode(torch.from_numpy(newest[users]))[:, -1]
            return (states @ module.network.item_vectors()[1:].T).numpy()

    return score


def put(line: np.ndarray, items: np.ndarray) -> None:
    """The latest items at the end of a line of places."""
    kept = items[-len(line) :]
    if len(kept):
        line[-len(kept) :] = kept


def ranking(*, seed: int, epochs: int = 8) -> MetricsTable:
    """Will it get four stars? The global time split, with what was known of user and film at that moment."""
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    from lightning_mp import DCNv2, RankingDataModule, RankingModule
    from lightning_mp.data.attribute_table import AttributeTable
    from lightning_mp.data.columns import Columns, ConstantEvent
    from lightning_mp.data.feature_spec import FeatureSpec
    from lightning_mp.data.label import ValueLabel
    from lightning_mp.data.time_split import TimeSplit

    pl.seed_everything(seed, verbose=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("inter", "item", "user"):
            write(folder / f"{part}.csv", table(part))
        past = {"of": "order", "as": "mean", "column": "rating"}
        features = [
            FeatureSpec(name="user_id", kind="id", role="user"),
            FeatureSpec(name="item_id", kind="id", role="item"),
            FeatureSpec(name="age", kind="numeric", role="user"),
            FeatureSpec(name="gender", kind="categorical", role="user"),
            FeatureSpec(name="occupation", kind="categorical", role="user"),
            FeatureSpec(name="release_year", kind="numeric", role="item"),
            FeatureSpec(name="class", kind="categorical", role="item"),
            *(FeatureSpec(name=f"{by}_mean", kind="numeric", history={**past, "by": [by]}) for by in ("user", "item")),
            *(
                FeatureSpec(
                    name=f"{by}_count", kind="numeric", transform="log1p_zscore", history={"of": "order", "by": [by]}
                )
                for by in ("user", "item")
            ),
        ]
        data = RankingDataModule(
            str(folder / "inter.csv"),
            store=str(folder / "store"),
            columns=Columns(
                user="user_id", item="item_id", time="timestamp", value="rating", event=ConstantEvent(constant="order")
            ),
            label=ValueLabel(value="rating", at_least=4),
            split=TimeSplit(validation=0.1, test=0.2),
            users=AttributeTable(path=str(folder / "user.csv"), key="user_id"),
            items=AttributeTable(path=str(folder / "item.csv"), key="item_id"),
            features=features,
            max_bad_share=0.01,  # two films have no year
            batch_size=512,
        )
        best = ModelCheckpoint(dirpath=folder / "best", monitor="val_auc", mode="max")
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[best, EarlyStopping("val_auc", mode="max", patience=2)],
        )  # fmt: skip
        network = partial(DCNv2, embedding_dim=16, cross_layers=2, hidden=(64,), dropout=0.2)
        module = RankingModule(network, optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05))
        trainer.fit(module, datamodule=data)
        outputs = trainer.predict(module, datamodule=data, ckpt_path=best.best_model_path)
        columns = {key: torch.cat([batch[key] for batch in outputs]).numpy() for key in ("row", "score")}
        return evaluate(data.store, **columns)


def write(path: Path, columns: dict[str, list[str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(
            [
                value.removesuffix(".0") if name == "timestamp" else value
                for name, value in zip(columns, line, strict=True)
            ]
            for line in zip(*columns.values(), strict=True)
        )
