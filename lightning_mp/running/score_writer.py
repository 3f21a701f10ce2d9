"""Scores of a prediction run as one Parquet file, written as they come."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import lightning.pytorch as pl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lightning_mp.artifacts import replacing
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError
from lightning_mp.running.ordered_scores import TIME, OrderedScores
from lightning_mp.running.predictions import each_prediction


def write_scores(
    trainer: pl.Trainer,
    model: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    path: Path,
    *,
    ckpt_path: str | None = None,
    weights_only: bool | None = None,
) -> Path:
    """Run `trainer.predict` and write row, time, user, item and score; raw keys, in the order of the log.

    `row` counts the data rows of the log from 0 on, without the header and with the rejected ones, over all files
    where there are several; drawn negatives go on behind it. `time` is the row's, in UTC. Where `predict_step` gives no
    `row`, both are left out, and the order is that of the batches. The file appears whole or, where the run fails or is
    killed, not at all: what stood there before stays.

    Args:
        trainer: Of one process: each would write the same file.
        model: Its `predict_step` gives `score` (B,), or (B, T) with a column a label of the store, and `user` and
            `item` (B,) int64, codes of the store, and `row` (B,) int64.
        datamodule: Has a `store`.
        path: Parquet file.
        ckpt_path: Of `trainer.predict`, as the next.
        weights_only: Whether the checkpoint may hold nothing but plain values and tensors.

    Returns:
        `path`.

    Raises:
        ConfigurationError: There are several processes, no store, or `predict_step` gives something else.
        ArtifactError: The file cannot be written.
    """
    if trainer.world_size > 1:
        raise ConfigurationError(
            f"`predict` would write the scores of {trainer.world_size} processes to one file",
            "use `trainer.devices: 1`",
        )
    store = getattr(datamodule, "store", None)
    if not isinstance(store, FeatureStore):
        raise ConfigurationError(
            "`predict` found no feature store: the keys of users and items are in it",
            "use a datamodule with a `store`, such as `lightning_mp.RankingDataModule`",
        )
    with replacing(path) as file:
        scratch = OrderedScores(path.parent, store)
        writer = _ScoreWriter(file, store, type(model).__name__, scratch)
        try:
            each_prediction(
                trainer,
                model,
                writer.write,
                datamodule=datamodule,
                ckpt_path=ckpt_path,
                weights_only=weights_only,
            )
            writer.close(getattr(datamodule, "version", None))
        except BaseException:
            with suppress(OSError, ValueError):  # the file is thrown away; unclosed, pyarrow would complain later
                writer.abandon()
            raise
        finally:
            scratch.close()
    return path


class _ScoreWriter:
    def __init__(self, file: IO[bytes], store: FeatureStore, model: str, ordered: OrderedScores) -> None:
        self._file = file
        self._store = store
        self._model = model
        self._ordered = ordered
        self._by_row = False
        self._keys: dict[str, pa.Array] = {}
        self._writer: pq.ParquetWriter | None = None

    def write(self, outputs: Any) -> None:
        if not self._keys:
            self._keys = {"user": self._store.users(), "item": self._store.items()}
            self._by_row = hasattr(outputs, "keys") and "row" in outputs
        needed = (*(("row",) if self._by_row else ()), "user", "item", "score")
        missing = [name for name in needed if not hasattr(outputs, "keys") or name not in outputs]
        if missing:
            raise ConfigurationError(
                f"`{self._model}.predict_step` gave no `{missing[0]}`",
                "let it return a dict with `user`, `item` and `score`, each (B,)",
            )
        scores = self._scores(outputs["score"].float().cpu().numpy())
        codes = {name: outputs[name].cpu().numpy() for name in needed[:-1]}
        if self._by_row:
            self._ordered.add({**codes, **scores})
        else:
            columns = {name: keys.take(pa.array(codes[name])) for name, keys in self._keys.items()}
            self._append(pa.table({**columns, **scores}))

    def _append(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def _scores(self, score: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """One column, or one a task: `score_click`, `score_order`."""
        if score.ndim == 1:
            return {"score": score}
        names = [feature.name for feature in self._store.schema.labels]
        if len(names) != score.shape[1]:
            raise ConfigurationError(
                f"`{self._model}.predict_step` gave {score.shape[1]} scores a row, the store has {len(names)} labels",
                "give one score a label, (B, T), or (B,)",
            )
        return {f"score_{name}": np.ascontiguousarray(score[:, place]) for place, name in enumerate(names)}

    def close(self, version: int | None) -> None:
        for table in self._ordered.tables(self._keys, version):
            self._append(table)
        if self._writer is None:
            keys = [("user", pa.string()), ("item", pa.string())]
            self._append(pa.schema([("row", pa.int64()), ("time", TIME), *keys, ("score", pa.float32())]).empty_table())
        self.abandon()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
