"""ResumableRandomState: what Lightning's own checkpoint lacks for a resume that is exact to the bit."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, distributed
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.epoch_metrics import add_logged, epoch_metrics, epoch_value, set_module_metrics
from lightning_mp.callbacks.random_state import random_state, set_random_state
from lightning_mp.errors import LightningMPWarning

_KEY = "lightning_mp.ResumableRandomState"


class ResumableRandomState(Callback):
    """Make a run that was killed and resumed end as it would have ended, to the bit.

    Lightning saves weights, optimizers, schedules, the loss scale and its counters. Added here, in each checkpoint: the
    state of the random generators (dropout, sampling) of every process; what an epoch has added up so far, so that
    epoch means are those of the whole epoch; the last values of the metrics that other callbacks monitor; gradients
    that wait for the rest of an accumulation. Two of Lightning's counters, which a resume at an epoch's end leaves
    one behind, are put right: a second resume in the next epoch would train a batch twice.

    The rows come back in order only where the training loader can resume: `RankingDataModule`'s can, and any with
    `state_dict` and `load_state_dict`. A loader that cannot is named in one warning when the fit starts. On a GPU the
    arithmetic itself must be deterministic as well: `Trainer(deterministic=True)`.

    Example:
        >>> trainer = pl.Trainer(callbacks=[ResumableRandomState()], logger=False, enable_checkpointing=False)
    """

    def __init__(self) -> None:
        self._logged: dict[str, Any] = {}
        self._restored: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        own = random_state()
        everyone = [own]
        if distributed.is_available() and distributed.is_initialized():
            everyone = [own] * distributed.get_world_size()
            distributed.all_gather_object(everyone, own)
        middle = _in_the_middle(trainer)
        epoch = epoch_metrics(trainer, pl_module) if middle else {}
        if middle:  # what a resume brought and no batch has logged since is still due
            epoch["logged"] = {**self._logged, **epoch["logged"]}
        checkpoint[_KEY] = {
            "random": everyone,
            "epoch": epoch,
            "monitored": {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()},
            "gradients": _gradients(trainer, pl_module) if middle else {},
        }

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == "fit":
            self._restored = checkpoint.get(_KEY)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        _tell_loaders(trainer)
        restored, self._restored = self._restored, None
        if restored is None:
            return
        trainer.callback_metrics.update(restored["monitored"])
        self._logged = dict(restored["epoch"].get("logged", {}))
        set_module_metrics(pl_module, restored["epoch"].get("metrics", {}))
        parameters = dict(pl_module.named_parameters())
        for name, gradient in restored["gradients"].items():
            parameters[name].grad = gradient.to(parameters[name].device)
        if len(restored["random"]) != trainer.world_size:
            rank_zero_warn(
                f"the checkpoint has random generators of {len(restored['random'])} processes, now there are "
                f"{trainer.world_size}: dropout and sampling go on otherwise than they would have; resume "
                "with the same number of devices for an exact resume",
                category=LightningMPWarning,
            )
            return
        set_random_state(restored["random"][trainer.global_rank])

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        progress: Any = trainer.fit_loop.epoch_progress
        for counters in (progress.total, progress.current):
            # In an epoch that has begun these are one ahead. After a resume at an epoch's end Lightning leaves them
            # equal; the next checkpoint then reads like an epoch's end, and a resume trains the first batch again.
            if counters.ready == counters.completed:
                counters.ready = counters.started = counters.completed + 1

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._logged:
            add_logged(trainer, self._logged)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for saved in self._logged.values():
            pl_module.log(saved["name"], epoch_value(saved).to(pl_module.device), prog_bar=saved["prog_bar"])
        self._logged = {}


def _in_the_middle(trainer: pl.Trainer) -> bool:
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return bool(progress.current.ready > 0 and not progress.is_last_batch)


def _gradients(trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Tensor]:
    """Gradients that have been added up and not been used yet, by parameter."""
    waiting = trainer.accumulate_grad_batches
    if waiting == 1 or trainer.fit_loop.epoch_loop.batch_progress.current.ready % waiting == 0:
        return {}
    return {
        name: parameter.grad.detach().clone().cpu()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def _tell_loaders(trainer: pl.Trainer) -> None:
    loaders = trainer.train_dataloader
    for loader in loaders if isinstance(loaders, (list, tuple)) else [loaders]:
        if loader is None or (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            continue
        source = getattr(trainer, "datamodule", None) or trainer.lightning_module
        dataset = type(getattr(loader, "dataset", loader)).__name__
        rank_zero_warn(
            f"the training loader of `{type(source).__name__}`, a `{type(loader).__name__}` over `{dataset}`, has no "
            "`state_dict`: a run that stops in the middle of an epoch will repeat some rows and miss others when it is "
            "resumed; give `ResumableLoader(dataset, batch_size=...)`, or resume from an epoch's end",
            category=LightningMPWarning,
        )
