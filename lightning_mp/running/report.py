"""What stands at the end of a fit or a test: the model beside the baselines, and where everything is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import rich
import torch
from torch import Tensor

from lightning_mp.callbacks.onnx_export import OnnxExport
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.datamodules.ranking import SYNTHETIC
from lightning_mp.errors import NumericError
from lightning_mp.running.against_fp32 import against_fp32
from lightning_mp.running.checkpoint_note import checkpoint_note
from lightning_mp.running.checkpoint_options import require_checkpoint
from lightning_mp.running.evaluate import evaluate
from lightning_mp.running.evaluate_lists import evaluate_lists
from lightning_mp.running.list_metrics_table import ListMetricsTable
from lightning_mp.running.metrics_table import MetricsTable
from lightning_mp.running.predictions import callbacks_of, each_prediction
from lightning_mp.running.why_it_stopped import why_it_stopped


def report_fit(trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Test the best checkpoint, print its metrics beside the baselines', where it is, and how to serve the bundle.

    The best is what `ModelCheckpoint` chose by its `monitor`. Without one it is the last, and a line says what an
    earlier one was worth. A line before it says what ended the fit ahead of its limits. The table is also written to
    `metrics.json` in the run's folder.

    Args:
        trainer: After its fit.
        model: What was trained; it has the weights of that checkpoint afterwards.
        datamodule: What it was trained on.
    """
    best = getattr(trainer.checkpoint_callback, "best_model_path", "") or None
    lines = why_it_stopped(trainer, callbacks_of(trainer))  # the test loads the states of the best checkpoint
    note = checkpoint_note(trainer)
    trainer.test(model, datamodule=datamodule, ckpt_path=best, verbose=False)
    report_test(trainer, model, datamodule)
    lines += [f"checkpoint: {_shown(best) if best else 'none was kept; the weights at the end were tested'}"]
    lines += [] if note is None else [f"            {note}"]
    bundles = [c.bundle for c in callbacks_of(trainer) if isinstance(c, OnnxExport) and c.bundle is not None]
    for bundle in bundles:
        folder = _shown(bundle.path)
        lines += [f"bundle:     {folder}", f"serve it:   lightning-mp serve {shlex.quote(folder)}"]
    store = getattr(datamodule, "store", None)
    if not bundles and best and isinstance(store, FeatureStore):
        words = ["lightning-mp", "export", _shown(best), "--store", _shown(store.path), "--out", "bundle"]
        lines.append(f"bundle:     none was written; make one: {shlex.join(words)}")
    print("\n".join(lines))  # noqa: T201 (the answer of the command)


def report_precision(
    trainer: pl.Trainer,
    model: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    checkpoint: str,
    other: str | bool,
) -> None:
    """Print what the precision costs against float32, on the validation part; `against_fp32.json` keeps it.

    Args:
        trainer: After its validation.
        model: With the weights of the checkpoint.
        datamodule: What it was validated on.
        checkpoint: That was validated.
        other: Checkpoint of a run trained in float32; `True` for the same one.

    Raises:
        NumericError: A loss of more than 1 % of a metric is certain.
    """
    second = other if isinstance(other, str) else None
    if second is not None:
        require_checkpoint(second, evaluates=True)
    found = against_fp32(trainer, model, datamodule, checkpoint=checkpoint, float32_checkpoint=second)
    rich.print(found)
    print(f"kept in: {_shown(found.write(Path(trainer.default_root_dir) / 'against_fp32.json'))}")  # noqa: T201  # the answer of the command
    if found.verdict == "fails":
        hint = (
            "keep the input and output layers in float32 with `KeepInFP32`; the page of `PrecisionReport` names layers"
        )
        raise NumericError(f"precision `{found.precision}` is worse than float32 on the same rows", hint)


def report_test(trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Print the model's metrics on the test part beside the baselines', where the datamodule has a store.

    The tables are also written to the run's folder: `metrics.json`, or `metrics-<task>.json` each.

    Args:
        trainer: After its test.
        model: With the weights that were tested.
        datamodule: What it was tested on.
    """
    for task, table in metrics_tables(trainer, model, datamodule).items():
        if task:
            print(f"task `{task}`")  # noqa: T201 (the answer of the command)
        if trainer.log_dir is not None and trainer.loggers:
            table.write(Path(trainer.log_dir) / (f"metrics-{task}.json" if task else "metrics.json"))
        rich.print(table)


def metrics_tables(
    trainer: pl.Trainer, model: pl.LightningModule, datamodule: pl.LightningDataModule | None
) -> dict[str, MetricsTable | ListMetricsTable]:
    """Score the test part and set the model beside the baselines.

    A module with `list_scorer(store, version)`, which gives a function from codes of users (u,) to scores of all items
    (u, items), is judged by its lists; any other by its rows.

    Args:
        trainer: Its limits hold: with `limit_predict_batches` the table is of the rows that were scored.
        model: Its `predict_step` gives `row` (B,), and `score` (B,) or, with a column a task, (B, T).
        datamodule: Its `store` has the labels.

    Returns:
        A table by the name of its task, `""` where there is but one. Nothing where there is no store, where
        `predict_step` gives something else, or in one of several processes.
    """
    store = getattr(datamodule, "store", None)
    if not isinstance(store, FeatureStore) or trainer.world_size > 1:
        return {}
    version = getattr(datamodule, "version", None)
    lists = getattr(model, "list_scorer", None)
    if callable(lists):
        exclude, k = getattr(model, "exclude_seen", True), getattr(model, "k", 10)
        return {"": evaluate_lists(store, lists(store, version), exclude_seen=exclude, k=k, version=version)}
    rows: list[Tensor] = []
    scores: list[Tensor] = []

    def keep(outputs: Any) -> None:
        if isinstance(outputs, dict) and {"row", "score"} <= outputs.keys():
            rows.append(outputs["row"].cpu())
            scores.append(outputs["score"].float().cpu())

    each_prediction(trainer, model, keep, datamodule=datamodule)
    if not rows:
        return {}
    drawn = getattr(datamodule, "path", None) == SYNTHETIC
    log = getattr(datamodule, "log_path", None) if drawn else None
    row, score = torch.cat(rows).numpy(), torch.cat(scores).numpy()
    columns = score[:, None] if score.ndim == 1 else score
    names = [feature.name for feature in store.manifest_of(version).schema.labels][: columns.shape[1]]
    return {
        "" if len(names) == 1 else name: evaluate(
            store, row=row, score=columns[:, label], log=log, version=version, label=label
        )
        for label, name in enumerate(names)
    }


def _shown(path: str | Path) -> str:
    """Relative to the working directory where it lies under it."""
    absolute, here = Path(path).resolve(), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
