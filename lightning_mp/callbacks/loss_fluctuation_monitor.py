"""Look at once for the cause when a validation loss moves further than it should."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict
from typing import Any, Literal, get_args

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.fluctuation_facts import fluctuation_facts, largest_learning_rate, loss_scale_monitor
from lightning_mp.callbacks.log_metrics import log_metrics
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.errors import ConfigurationError, LightningMPWarning
from lightning_mp.precision.batch_ranges import BatchRange, batch_ranges
from lightning_mp.precision.fluctuation_findings import fluctuation_findings
from lightning_mp.precision.fluctuation_report import FluctuationReport
from lightning_mp.precision.gradient_norm import gradient_norm
from lightning_mp.precision.loss_reference import LossReference
from lightning_mp.precision.skip_count import SkipCount

Mode = Literal["min", "max"]
_REPORTS_KEPT, _NORMS_KEPT = 64, 32


class LossFluctuationMonitor(Callback):
    """Check the run at once when a validation loss moves far from its running median, and tell the likely cause.

    The reference is the median of the last `window` validations. Looked at are: weights and buffers that are not
    finite, the steps that the gradient scaler skipped since the validation before and its scale, the gradient norms of
    the last logging steps, the last training and validation batch beside those of a quiet validation, and the learning
    rate. A move for the better is reported too, as an improvement, without a warning. A loss that is not finite is
    reported always. The sanity check does not count. The weights are the same with and without the monitor.

    Where a `LossScaleMonitor` stands in the same Trainer its events are used, and name the layers. Off logging steps
    nothing is read from the device; what the check costs is paid at a validation.

    Args:
        monitor: Name of the metric, as it was logged.
        threshold: Change from the median, relative to the window's usual size, above which there is a check.
        window: Number of validations that the median is taken of.
        mode: `"min"` where a smaller value is better, `"max"` where a larger is.

    Attributes:
        reports: The last 64 checks, the oldest first, each a `FluctuationReport`.

    Logs:
        `loss_fluctuation`: relative change from the running median, with its sign, at each validation from the second
            on; a loss below 1e-6 counts as 1e-6.

    Raises:
        ConfigurationError: A number is not positive, or `mode` is another word.

    Example:
        >>> monitor = LossFluctuationMonitor("val_loss", threshold=0.15)
        >>> trainer = pl.Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self, monitor: str = "val_loss", *, threshold: float = 0.15, window: int = 5, mode: Mode = "min"
    ) -> None:
        if not threshold > 0:
            raise ConfigurationError(f"`threshold` must be positive, got {threshold!r}", "use 0.15")
        if window < 1:
            raise ConfigurationError(f"`window` must be at least 1, got {window!r}", "use 5")
        if mode not in get_args(Mode):
            raise ConfigurationError(f"`mode` must be `min` or `max`, got {mode!r}", "use `min` for a loss")
        self.monitor, self.threshold, self.window, self.mode = monitor, threshold, window, mode
        self._state_key = self._generate_state_key(monitor=monitor, threshold=threshold, window=window, mode=mode)
        self._reset()
        self._forget()

    def _reset(self) -> None:
        self.reports: deque[FluctuationReport] = deque(maxlen=_REPORTS_KEPT)
        self._reference = LossReference(self.window)
        self._norms: deque[float] = deque(maxlen=_NORMS_KEPT)
        self._usual: tuple[BatchRange, ...] = ()
        self._base = self._before = (0, 0)  # steps tried and skipped: before this run, and up to the last validation
        self._lr_before = 0.0

    def _forget(self) -> None:
        self._count: SkipCount | None = None
        self._unread: deque[Tensor] = deque(maxlen=_NORMS_KEPT)
        self._batches: dict[str, Any] = {}
        self._saw_backward = self._told_missing = False

    @property
    @override
    def state_key(self) -> str:
        return self._state_key  # made once: Lightning asks for it at every hook

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":  # before the state of a checkpoint is loaded
            self._reset()

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()
        if trainer.scaler is not None and trainer.scaler.is_enabled() and loss_scale_monitor(trainer) is None:
            self._count = SkipCount(trainer.optimizers)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._saw_backward = False
        self._batches["training"] = batch

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        self._saw_backward = True

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        if pl_module.automatic_optimization and not self._saw_backward:
            return  # training_step gave None: the scaler is left alone
        if self._count is not None:
            self._count.expect_step()
        if is_logging_step(trainer):
            scaled = trainer.scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False)
            norm = gradient_norm(optimizer, scale=trainer.scaler.get_scale() if scaled and trainer.scaler else 1.0)
            self._unread += [] if norm is None else [norm]

    @override
    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._batches["validation"] = batch

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        metric = trainer.callback_metrics.get(self.monitor)
        if metric is None:
            self._tell_missing(trainer)
            return
        value = float(metric)
        change, reference = self._reference.change(value), self._reference.median
        if change is not None:
            log_metrics(trainer, {"loss_fluctuation": change})
        ranges = tuple(entry for batch in self._batches.values() for entry in batch_ranges(batch))
        counts = self._counts(trainer)
        if not math.isfinite(value) or (change is not None and abs(change) > self.threshold):
            improved = change is not None and (change < 0) == (self.mode == "min")
            facts = fluctuation_facts(
                trainer,
                pl_module,
                steps=(counts[0] - self._before[0], counts[1] - self._before[1]),
                norms=self._read_norms(),
                ranges=ranges,
                usual_ranges=self._usual,
                learning_rate_before=self._lr_before,
            )
            report = FluctuationReport(
                step=trainer.global_step,
                epoch=trainer.current_epoch,
                monitor=self.monitor,
                value=value if math.isfinite(value) else None,
                reference=reference,
                change=change,
                improved=improved,
                findings=fluctuation_findings(facts, improved=improved),
            )
            self.reports.append(report)
            if not improved:
                rank_zero_warn(f"{report}\n\nhint: {report.cause.cure}", category=LightningMPWarning)
        else:
            self._usual = ranges
        self._reference.add(value)
        self._before, self._lr_before = counts, largest_learning_rate(trainer)
        self._batches.pop("validation", None)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "reports": [report.to_dict() for report in self.reports],
            "losses": self._reference.values,
            "norms": self._read_norms(),
            "usual": [asdict(entry) for entry in self._usual],
            "counts": list(self._own_counts()),
            "before": list(self._before),
            "lr_before": self._lr_before,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reports = deque(map(FluctuationReport.from_dict, state_dict["reports"]), maxlen=_REPORTS_KEPT)
        self._reference = LossReference(self.window, state_dict["losses"])
        self._norms = deque(state_dict["norms"], maxlen=_NORMS_KEPT)
        self._usual = tuple(BatchRange(**entry) for entry in state_dict["usual"])
        self._base, self._before = tuple(state_dict["counts"]), tuple(state_dict["before"])
        self._lr_before = state_dict["lr_before"]

    def __getstate__(self) -> dict[str, Any]:
        self._read_norms()
        return {**detached_state(self.__dict__, run=["_count"]), "_base": self._own_counts(), "_batches": {}}

    def _counts(self, trainer: pl.Trainer) -> tuple[int, int]:
        monitor = loss_scale_monitor(trainer)
        return self._own_counts() if monitor is None else (monitor.history.attempts, monitor.history.skipped)

    def _own_counts(self) -> tuple[int, int]:
        own = (0, 0) if self._count is None else (self._count.attempts, self._count.skipped)
        return self._base[0] + own[0], self._base[1] + own[1]

    def _read_norms(self) -> list[float]:
        self._norms.extend(norm for norm in map(float, self._unread) if math.isfinite(norm))
        self._unread.clear()
        return list(self._norms)

    def _tell_missing(self, trainer: pl.Trainer) -> None:
        if not self._told_missing:
            self._told_missing = True
            names = ", ".join(f"`{name}`" for name in sorted(trainer.callback_metrics)[:8]) or "nothing"
            problem = f"`LossFluctuationMonitor` found no metric `{self.monitor}` after a validation; logged is {names}"
            hint = f'write `self.log("{self.monitor}", loss)` in `validation_step`, or give its name as `monitor`'
            rank_zero_warn(f"{problem}\n\nhint: {hint}", category=LightningMPWarning)

    def _release(self) -> None:
        if self._count is not None:
            self._base = self._own_counts()
            self._count.release()
        self._read_norms()
        self._forget()
