"""What stands at the end of a fit or a test: the model beside the baselines, and where everything is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import rich
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from typing_extensions import override

from lightning_mp.callbacks.onnx_export import OnnxExport
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import SYNTHETIC
from lightning_mp.running.evaluate import evaluate
from lightning_mp.running.metrics_table import MetricsTable


def report_fit(trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Test the best checkpoint, print its metrics beside the baselines', where it is, and how to serve the bundle.

    The table is also written to `metrics.json` in the run's folder.

    Args:
        trainer: After its fit.
        model: What was trained; it has the weights of the best checkpoint afterwards.
        datamodule: What it was trained on.
    """
    best = getattr(trainer.checkpoint_callback, "best_model_path", "") or None
    trainer.test(model, datamodule=datamodule, ckpt_path=best, verbose=False)
    report_test(trainer, model, datamodule)
    lines = [f"checkpoint: {_shown(best) if best else 'none was kept; the weights at the end were tested'}"]
    for callback in _callbacks(trainer):
        if isinstance(callback, OnnxExport) and callback.bundle is not None:
            folder = _shown(callback.bundle.path)
            lines += [f"bundle:     {folder}", f"serve it:   lightning-mp serve {shlex.quote(folder)}"]
    print("\n".join(lines))  # noqa: T201 (the answer of the command)


def report_test(trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Print the model's metrics on the test part beside the baselines', where the datamodule has a store.

    Args:
        trainer: After its test.
        model: With the weights that were tested.
        datamodule: What it was tested on.
    """
    table = metrics_table(trainer, model, datamodule)
    if table is None:
        return
    if trainer.log_dir is not None and trainer.loggers:
        table.write(Path(trainer.log_dir) / "metrics.json")
    rich.print(table)


def metrics_table(
    trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule | None
) -> MetricsTable | None:
    """Score the test part and set the model beside the baselines.

    Args:
        trainer: Its limits hold: with `limit_predict_batches` the table is of the rows that were scored.
        model: Its `predict_step` gives `score` and `row`, (B,).
        datamodule: Its `store` has the labels.

    Returns:
        `None` where there is no store, where `predict_step` gives something else, or in one of several processes.
    """
    store = getattr(datamodule, "store", None)
    if not isinstance(store, FeatureStore) or trainer.world_size > 1:
        return None
    scores, callbacks = _Scores(), _callbacks(trainer)
    callbacks.append(scores)
    try:
        trainer.predict(model, datamodule=datamodule, return_predictions=False)
    finally:
        callbacks.remove(scores)
    if not scores.rows:
        return None
    drawn = getattr(datamodule, "path", None) == SYNTHETIC
    log = getattr(datamodule, "log_path", None) if drawn else None
    return evaluate(store, row=torch.cat(scores.rows).numpy(), score=torch.cat(scores.values).numpy(), log=log)


class _Scores(Callback):
    """Keeps the row and the score of each batch, and lets go of the rest."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.values: list[Tensor] = []

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
        if isinstance(outputs, dict) and {"row", "score"} <= outputs.keys():
            self.rows.append(outputs["row"].cpu())
            self.values.append(outputs["score"].float().cpu())


def _callbacks(trainer: pl.Trainer) -> list[Callback]:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it elsewhere
    return callbacks


def _shown(path: str | Path) -> str:
    """Relative to the working directory where it lies under it."""
    absolute, here = Path(path).resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
