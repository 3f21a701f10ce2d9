"""Find what float16 breaks in a module when its fit begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.keep_in_fp32 import KeepInFP32
from lightning_mp.callbacks.learning_rate_warmup import LearningRateWarmup
from lightning_mp.errors import ConfigurationError, LightningMPWarning, NumericError
from lightning_mp.optim.warmup_decay_lr import WarmupDecayLR
from lightning_mp.precision.lint.finding import LINT_CODES, LintFinding
from lightning_mp.precision.lint.lint import lint
from lightning_mp.precision.lint.module_rules import findings_in_optimizers
from lightning_mp.precision.module_names import matching_modules

RaiseOn = Literal["never", "error", "warning"]


class PrecisionLint(Callback):
    """Read a module before it is trained, and tell what in it float16 breaks, with place and cure.

    Read is the source of its class, of its submodules' classes and of the functions of their package that they call;
    then the layers, the metrics and the parameters themselves; where there is an `example_input_array`, one forward
    pass on it; and, before the first batch, the optimizers. torch and Lightning are passed over, and so is what has no
    source. Random state and buffers are as before, and nothing happens in a batch. A run in float32 has no findings.

    The codes, each with a page: `MP101` binary cross entropy of probabilities, `MP102` mask value out of range, `MP103`
    epsilon too small, `MP104` loss summed over the batch, `MP105` ids in a float tensor, `MP106` metric in half
    precision, `MP107` half parameters under mixed precision, `MP108` sparse product in half precision, `MP109` LSTM on
    a CPU, `MP110` optimizer epsilon in true half precision, `MP111` learning rate too high.

    Args:
        ignore: Codes that are not looked for.
        raise_on: Severity from which on the fit does not begin; by default it always does.

    Attributes:
        findings: What the last fit had, each a `LintFinding`, the gravest first.

    Raises:
        ConfigurationError: A code or `raise_on` is unknown.
        NumericError: A finding is as grave as `raise_on`.

    Example:
        >>> linter = PrecisionLint(ignore=["MP103"])
        >>> trainer = pl.Trainer(callbacks=[linter], logger=False, enable_checkpointing=False)
    """

    def __init__(self, *, ignore: Collection[str] = (), raise_on: RaiseOn = "never") -> None:
        for code in ignore:
            if code not in LINT_CODES:
                problem = f"`{code}` is no code of `PrecisionLint`"
                raise ConfigurationError(problem, f"use one of {', '.join(LINT_CODES)}")
        if raise_on not in get_args(RaiseOn):
            problem = f"`raise_on` must be `never`, `error` or `warning`, got {raise_on!r}"
            raise ConfigurationError(problem, "use `error`")
        self.ignore = tuple(ignore)
        self.raise_on = raise_on
        self.findings: tuple[LintFinding, ...] = ()

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        found = lint(
            pl_module,
            precision=str(trainer.precision),
            device_type=trainer.strategy.root_device.type,
            forward=None if pl_module.example_input_array is None else _forward(trainer, pl_module),
        )
        kept = _kept(trainer, pl_module)
        self.findings = self._wanted(tuple(one for one in found if one.code != "MP109" or one.place not in kept))
        self._tell(self.findings)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
        warmup = next((one for one in callbacks if isinstance(one, LearningRateWarmup)), None)
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        judged = findings_in_optimizers(
            trainer.optimizers,
            precision=str(trainer.precision),
            warmed=warmup is not None or any(isinstance(one, WarmupDecayLR) for one in schedules),
            max_lr=None if warmup is None else warmup.max_lr,
        )
        found = self._wanted(tuple(judged))
        self.findings += found
        self._tell(found)

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__)

    def _wanted(self, found: tuple[LintFinding, ...]) -> tuple[LintFinding, ...]:
        return tuple(one for one in found if one.code not in self.ignore)

    def _tell(self, found: tuple[LintFinding, ...]) -> None:
        grave = [one for one in found if one.severity != "note"]
        for one in found:
            if one.severity == "note":
                rank_zero_info(f"`PrecisionLint`: {one}; {one.cure}")
        if not grave:
            return
        lines = "\n".join(f"  {one}" for one in grave)
        number = f"{len(grave)} thing{'s' if len(grave) > 1 else ''}"
        problem = f"`PrecisionLint` found {number} in the module that half precision breaks:\n{lines}"
        if any(one.severity == "error" or self.raise_on == "warning" for one in grave) and self.raise_on != "never":
            raise NumericError(problem, grave[0].cure)
        rank_zero_warn(f"{problem}\n\nhint: {grave[0].cure}", category=LightningMPWarning)


def _kept(trainer: pl.Trainer, pl_module: pl.LightningModule) -> set[str]:
    """Names of the modules that a `KeepInFP32` of this Trainer was told to keep, and of those inside them."""
    names: set[str] = set()
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
    for callback in callbacks:
        if isinstance(callback, KeepInFP32) and callback.modules != "auto":
            patterns = [callback.modules] if isinstance(callback.modules, str) else callback.modules
            found = matching_modules(pl_module, patterns)
            names.update(f"{name}.{inner}".strip(".") for name in found for inner, _ in found[name].named_modules())
    return names


def _forward(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Callable[[], None]:
    """One forward pass on the example input, as Lightning makes it, with no trace left."""

    def forward() -> None:
        inputs = pl_module.transfer_batch_to_device(pl_module.example_input_array, pl_module.device, 0)
        buffers = {name: buffer.clone() for name, buffer in pl_module.named_buffers()}
        devices = [pl_module.device] if pl_module.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), torch.no_grad(), trainer.precision_plugin.forward_context():
                if isinstance(inputs, Mapping):
                    pl_module(**inputs)
                elif isinstance(inputs, tuple | list):
                    pl_module(*inputs)
                else:
                    pl_module(inputs)
        finally:
            with torch.no_grad():
                for name, buffer in pl_module.named_buffers():
                    if name in buffers:
                        buffer.copy_(buffers[name])

    return forward
