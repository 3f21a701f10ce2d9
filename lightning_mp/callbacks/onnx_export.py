"""OnnxExport: the trained model as a checked bundle, at the end of the fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import nn
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from lightning_mp.bundle import PARITY, Bundle, require_free
from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.errors import ConfigurationError, LightningMPError, LightningMPWarning
from lightning_mp.export.batch_module import Gives
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.export_onnx import export_onnx
from lightning_mp.export.inference_copy import inference_copy
from lightning_mp.export.precision_policy import Precision, PrecisionPolicy
from lightning_mp.hardware.targets import TargetName
from lightning_mp.schema import FeatureSchema

_ROWS: Final = 4096


class OnnxExport(Callback):
    """Export the trained model as a bundle at the end of the fit, or say by which number it was refused.

    The best checkpoint is exported where the Trainer kept one, else the weights that the fit ended with. A copy is
    exported: the module, its hooks and its mode are left as they are. The bundle of an earlier fit is replaced.
    Nothing is exported, and nothing replaced, by a fit with `fast_dev_run` or without one optimizer step.

    A LightningModule of any project is exported too, as `export_onnx` does it: where there is no feature store, its
    `example_input_array` is the sample, and batches of the validation loader (else of the training loader) judge it.

    Args:
        dirpath: Folder of the bundle. Whether it can be written is known before training starts.
        precision: `"fp32"`, `"fp16-storage"`, `"fp16-mixed"`, `"int8-dynamic"`, `"auto"`: what the target gains by and
            passes its gates, or a `PrecisionPolicy`.
        target: Where the bundle will run. `"this"`: a machine like this one.
        strict: Whether a refused or failed export fails the fit. Otherwise it is a warning, and there is no bundle.
        store: Folder of the feature store that the model is trained on; by default the datamodule's `store`.
        inputs: Without a store: names of the graph's inputs, taken out of the batches by name, or by position.
        labels: Without a store: name of the labels in the batches.
        gives: Without a store: what `forward` answers, `"logit"` or `"score"`.
        output: Without a store: key or position of the answer, where `forward` answers several; a list of keys for
            several tasks.

    Attributes:
        bundle: The bundle that was written; `None` before, and when there is none.

    Logs:
        `parity/max_logit_difference`: largest difference to the trained module, once, to the loggers, as all of them.
        `parity/p99_logit_difference`: its 99 % quantile over the rows.
        `parity/top_10_overlap`: share of the top ten that stays, mean over lists, in [0, 1].
        `parity/auc_difference`: absolute change of AUC; left out where AUC is undefined.
        `parity/strict_p99_logit_difference`: of the strict float16 run; left out where no layer computes in float16.

    Raises:
        ConfigurationError: An argument is wrong, or (strict) there is no store.
        ArtifactError: Strict, before training: the folder cannot be written.
        ParityError: Strict, after training: a gate failed.

    Example:
        >>> export = OnnxExport("bundle", precision="fp16-storage", strict=False)
        >>> trainer = pl.Trainer(callbacks=[export], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        dirpath: str | Path,
        precision: Precision | PrecisionPolicy = "auto",
        target: TargetName = "this",
        strict: bool = True,
        *,
        store: str | Path | None = None,
        inputs: list[str] | None = None,
        labels: str | None = None,
        gives: Gives = "logit",
        output: str | int | list[str] = 0,
    ) -> None:
        if target not in get_args(TargetName):
            words = ", ".join(f"'{word}'" for word in get_args(TargetName))
            raise ConfigurationError(f"`target` must be one of {words}, got {target!r}", "leave it out")
        self.dirpath = Path(dirpath)
        self.precision = PrecisionPolicy.of(precision)
        self.target: TargetName = target
        self.strict = strict
        self.store = None if store is None else Path(store)
        self.inputs, self.labels = inputs, labels
        self.gives: Gives = gives
        self.output = output
        self.bundle: Bundle | None = None
        self._given_up = False
        self._began_at: int | None = None

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(dirpath=str(self.dirpath), precision=self.precision.file, target=self.target)

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit" or not trainer.is_global_zero:
            return
        self.bundle, self._given_up, self._began_at = None, False, None
        try:
            require_free(self.dirpath, overwrite=True)
            self._store(trainer, pl_module)
        except LightningMPError as error:
            self._fail(error)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._began_at = _steps(trainer, pl_module)  # a resumed fit has steps of earlier ones

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero or self._given_up:
            return
        untrained = self._began_at is None or _steps(trainer, pl_module) <= self._began_at
        if untrained or getattr(trainer, "fast_dev_run", False):
            why = "this fit took no optimizer step" if untrained else "a fit with `fast_dev_run` is a trial"
            kept = f"; `{self.dirpath}` is left as it is" if self.dirpath.exists() else ""
            rank_zero_info(f"`OnnxExport` wrote no bundle: {why}{kept}")
            return
        try:
            self.bundle = self._export(trainer, pl_module)
        except Exception as error:
            self._fail(error)
            return
        used = self.bundle.manifest.precision["used"]
        rank_zero_info(f"`OnnxExport` wrote the bundle `{self.dirpath}` ({used}): lightning-mp serve {self.dirpath}")
        for logger in trainer.loggers:
            logger.log_metrics(self._parity(self.bundle), step=trainer.global_step)

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__)

    def _export(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Bundle:
        module, store = self._trained(trainer, pl_module), self._store(trainer, pl_module)
        policy = replace(self.precision, trained=str(trainer.precision))
        if store is not None:
            return export_bundle(
                module, self.dirpath, store=store, precision=policy, target=self.target, overwrite=True
            )  # fmt: skip
        declared: Any = pl_module.example_input_array
        return export_onnx(
            module, self.dirpath, sample=declared, rows=_real_batches(trainer),
            inputs=self.inputs, labels=self.labels, gives=self.gives, output=self.output, precision=policy,
            target=self.target, overwrite=True,
        )  # fmt: skip

    def _trained(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> nn.Module:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if not best or not Path(best).is_file():  # a sharded checkpoint is a folder
            return pl_module
        state: dict[str, Any] = torch.load(best, map_location="cpu", weights_only=True)["state_dict"]
        module = inference_copy(pl_module)
        module.load_state_dict({name.replace("_orig_mod.", ""): tensor for name, tensor in state.items()})
        return module

    def _store(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> FeatureStore | None:
        if self.store is not None:
            return FeatureStore(self.store)
        store = getattr(getattr(trainer, "datamodule", None), "store", None)
        if isinstance(store, FeatureStore):
            return store
        if pl_module.example_input_array is None or isinstance(getattr(pl_module, "schema", None), FeatureSchema):
            raise ConfigurationError(
                "`OnnxExport` found no feature store: the Trainer has no datamodule with a `store`",
                "pass `datamodule=RankingDataModule(...)` to `fit`, or `store=` to the callback; a module of another "
                "kind declares an `example_input_array`",
            )
        return None

    def _fail(self, error: Exception) -> None:
        if self.strict:
            raise error
        self._given_up = True
        problem, hint = (
            (error.problem, error.hint) if isinstance(error, LightningMPError) else (repr(error), "report it")
        )
        rank_zero_warn(f"`OnnxExport` wrote no bundle: {problem}\n\nhint: {hint}", category=LightningMPWarning)

    @staticmethod
    def _parity(bundle: Bundle) -> dict[str, float]:
        report = json.loads((bundle.path / PARITY).read_text(encoding="utf-8"))
        metrics = {
            "parity/max_logit_difference": report["logit"]["max"],
            "parity/p99_logit_difference": report["logit"]["p99"],
            "parity/top_10_overlap": report["ranking"]["overlap_mean"],
            "parity/auc_difference": report["auc"]["difference"],
            "parity/strict_p99_logit_difference": report.get("strict", {}).get("logit_p99"),
        }
        return {name: value for name, value in metrics.items() if value is not None}


def _steps(trainer: pl.Trainer, pl_module: pl.LightningModule) -> int:
    """Optimizer steps so far; batches where the module steps by itself, maybe past the Trainer's count."""
    return trainer.global_step if pl_module.automatic_optimization else trainer.fit_loop.total_batch_idx


def _real_batches(trainer: pl.Trainer) -> list[Any] | None:
    """A few batches of the validation loader, else of the training loader; `None` where there is neither."""
    loaders = trainer.val_dataloaders or trainer.train_dataloader
    loader = loaders[0] if isinstance(loaders, list | tuple) else loaders
    batches: list[Any] = []
    rows = 0
    for batch in loader or ():
        batches.append(batch)
        first = next((leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()), None)
        rows += 0 if first is None else len(first)
        if rows >= _ROWS:
            break
    return batches or None
