"""What mixed precision costs: the same rows scored in the run's precision and in float32, and the difference."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from typing_extensions import override

from lightning_mp.artifacts import replacing
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.running.compared_scores import MARGIN, Compared, Verdict, compare_scores
from lightning_mp.running.predictions import each_prediction

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstFP32:
    """What mixed precision costs, metric by metric; `rich.print` shows it, `write` keeps it as JSON.

    Args:
        precision: The run's.
        checkpoint: That was scored in it.
        float32_checkpoint: That was scored in float32; the same one, or that of a run trained in float32.
        rows: Rows of the validation part that both scored.
        users: Their users, which the intervals are drawn over; the rows where they have none.
        metrics: The comparisons.
    """

    precision: str
    checkpoint: str
    float32_checkpoint: str
    rows: int
    users: int
    metrics: tuple[Compared, ...]

    @property
    def verdict(self) -> Verdict:
        """The gravest of the metrics'."""
        found: set[Verdict] = {compared.verdict for compared in self.metrics}
        return "fails" if "fails" in found else "undecided" if "undecided" in found else "holds"

    def write(self, path: str | Path) -> Path:
        """Write it as JSON; the file is replaced whole or not at all."""
        record = asdict(self) | {"verdict": self.verdict, "margin": MARGIN}
        with replacing(path) as file:
            file.write(json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")
        return Path(path)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, then the verdict in words."""
        title = f"{self.precision} against float32, on {self.rows:,} validation rows of {self.users:,} users"
        table = Table("metric", title=title, title_justify="left")
        for heading in (self.precision, "float32", "difference", f"{self.metrics[0].difference.level:.0%} interval"):
            table.add_column(heading, justify="right")
        for one in self.metrics:
            interval = f"{one.difference.low:+.2e} to {one.difference.high:+.2e}"
            name = one.metric.replace("_", " ").replace("auc", "AUC")
            table.add_row(name, f"{one.mixed:.6f}", f"{one.float32:.6f}", f"{one.difference.mean:+.2e}", interval)
        yield table
        worst = max(self.metrics, key=lambda one: one.worst)
        cost, name, put_up = max(worst.worst, 0.0), worst.metric, f"{MARGIN:.0%} is put up with"
        yield {
            "holds": f"{self.precision} costs at most {cost:.2%} ({name}); up to {put_up}",
            "undecided": f"{self.precision} may cost up to {cost:.2%} ({name}), and {put_up}: more rows would tell",
            "fails": f"{self.precision} costs at least {max(one.best for one in self.metrics):.2%}; {put_up}",
        }[self.verdict]  # fmt: skip


def against_fp32(
    trainer: pl.Trainer,
    model: pl.LightningModule,
    datamodule: pl.LightningDataModule | None,
    *,
    checkpoint: str,
    float32_checkpoint: str | None = None,
) -> AgainstFP32:
    """Score the validation part twice: in the Trainer's precision, and in float32 by a Trainer of the same device.

    Args:
        trainer: Of one process; its `limit_val_batches` holds for both.
        model: Its `predict_step` gives `score` and `row`, (B,).
        datamodule: Its `store` has the labels.
        checkpoint: Scored in the Trainer's precision, with its callbacks (`KeepInFP32` among them).
        float32_checkpoint: Scored under `32-true` without callbacks; `checkpoint` when left out, and the difference
            is then of the arithmetic alone. With that of a run trained in float32 it is of training and arithmetic.

    Raises:
        ConfigurationError: There is no store, several processes, no other precision than float32, or `predict_step`
            gives something else.
        DataError: A score is not finite, or the labels are of one class.
    """
    store = getattr(datamodule, "store", None)
    if not isinstance(store, FeatureStore) or trainer.world_size > 1:
        problem = "`--against-fp32` needs one process and a datamodule with a store, which has the labels"
        raise ConfigurationError(problem, "use `trainer.devices: 1` and `lightning_mp.RankingDataModule`")
    if float32_checkpoint is None and str(trainer.precision) == "32-true":
        problem = "`--against-fp32` has nothing to compare: this run's precision is `32-true`"
        raise ConfigurationError(problem, "name a precision in the recipe's plugin, or pass a second checkpoint")
    if "validation" in store.manifest.splits and not store.manifest.schema.labels:
        problem = f"`--against-fp32` compares scores with labels, and the store `{store.path}` has none"
        raise DataError(problem, "prepare it with a `label`")
    plain = pl.Trainer(
        accelerator=trainer.strategy.root_device.type, devices=1, precision="32-true", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        limit_predict_batches=trainer.limit_val_batches, default_root_dir=trainer.default_root_dir,
    )  # fmt: skip
    other = float32_checkpoint or checkpoint
    limit, trainer.limit_predict_batches = trainer.limit_predict_batches, trainer.limit_val_batches
    try:
        rows, mixed = _scores(trainer, model, datamodule, checkpoint)
        with warnings.catch_warnings():  # it has no callbacks on purpose
            warnings.filterwarnings("ignore", message="Be aware that when using `ckpt_path`")
            same_rows, exact = _scores(plain, model, datamodule, other)
    finally:
        trainer.limit_predict_batches = limit
    order, same = np.argsort(rows), np.argsort(same_rows)
    if not np.array_equal(rows[order], same_rows[same]):
        raise DataError("the two precisions scored different rows", "let `predict_step` give `row` for every row")
    part = store.load("validation")
    place = np.argsort(part.row)
    where = place[np.searchsorted(part.row[place], rows[order])]
    users = part.user[where] if part.user.min() >= 0 else None
    metrics = compare_scores(mixed[order], exact[same], part.labels[where, 0], users=users)
    return AgainstFP32(
        precision=str(trainer.precision), checkpoint=checkpoint, float32_checkpoint=other, rows=len(rows),
        users=metrics[0].difference.users, metrics=metrics,
    )  # fmt: skip


class _ValidationPart(pl.LightningDataModule):
    """The validation part, to be predicted."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner
        self.schema, self.store = inner.schema, inner.store

    @override
    def setup(self, stage: str) -> None:
        self._inner.trainer = self.trainer
        self._inner.setup(stage)

    @override
    def predict_dataloader(self) -> Any:
        return self._inner.val_dataloader()


def _scores(
    trainer: pl.Trainer, model: pl.LightningModule, datamodule: Any, checkpoint: str
) -> tuple[NDArray[np.int64], Floats]:
    rows: list[torch.Tensor] = []
    values: list[torch.Tensor] = []

    def receive(outputs: Any) -> None:
        if not isinstance(outputs, dict) or not {"row", "score"} <= outputs.keys() or outputs["score"].dim() != 1:
            problem = f"`{type(model).__name__}.predict_step` gives no `score` (B,) with its `row`"
            raise ConfigurationError(problem, "let it return a dict with `score` and `row`, each (B,)")
        rows.append(outputs["row"].cpu())
        values.append(outputs["score"].double().cpu())

    each_prediction(trainer, model, receive, datamodule=_ValidationPart(datamodule), ckpt_path=checkpoint)
    if not rows:
        raise DataError("the validation part has no rows", "change `split`")
    return torch.cat(rows).numpy(), torch.cat(values).numpy()
