"""The recording of a report: what the other callbacks of the Trainer know, and a light record of what none does."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_mp.callbacks.gradient_clipping import GradientClipping
from lightning_mp.callbacks.gradient_underflow_monitor import GradientUnderflowMonitor
from lightning_mp.callbacks.learning_rate_warmup import LearningRateWarmup
from lightning_mp.callbacks.log_metrics import log_metrics
from lightning_mp.callbacks.logging_step import is_logging_step
from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor
from lightning_mp.callbacks.norm_guard import NormGuard
from lightning_mp.callbacks.precision_report_gradient_norm import true_gradient_norm
from lightning_mp.callbacks.precision_report_growth import WeightGrowth
from lightning_mp.callbacks.precision_report_leaks import LabelSample
from lightning_mp.callbacks.precision_report_rates import RateRecorder
from lightning_mp.callbacks.precision_report_recent import RecentBatches
from lightning_mp.callbacks.precision_report_record import RunRecord
from lightning_mp.callbacks.precision_report_series import Series
from lightning_mp.callbacks.precision_report_skips import SkipRecorder
from lightning_mp.precision.loss_scale import LossScaleHistory
from lightning_mp.precision.non_finite import finite_flags
from lightning_mp.precision.norm_buffers import norm_layers

_FIRST_PROBE, _PROBE_EVERY = 20, 1000


class RunRecorder:
    """Follows one fit and fills a record; hooks nothing on the module where nothing was skipped.

    Args:
        record: What is filled.
        trainer: Whose fit begins.
        module: That is trained.
    """

    def __init__(self, record: RunRecord, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._record = record
        self._trainer = trainer
        self._clock = time.monotonic()
        record.began = record.began or datetime.now(UTC).isoformat(timespec="seconds")
        self._scale_monitor = self._present(LossScaleMonitor)
        self._warmup = self._present(LearningRateWarmup)
        self._clipping = self._present(GradientClipping)
        self._underflow = self._present(GradientUnderflowMonitor)
        self._stands_in = self._underflow is None
        scaled = trainer.scaler is not None and trainer.scaler.is_enabled()
        self._skips = SkipRecorder(trainer, record.history) if scaled and self._scale_monitor is None else None
        self._probe_every = _PROBE_EVERY
        if self._underflow is None and scaled:
            steps = trainer.estimated_stepping_batches
            first = min(_FIRST_PROBE, max(1, int(min(steps, 1e9)) // 4))
            self._underflow = GradientUnderflowMonitor(every_n_steps=first, probe_every_n_steps=_PROBE_EVERY)
            self._underflow.on_train_start(trainer, module)
        self._seen_probe: object = self._underflow.report if self._underflow and not self._stands_in else None
        self._norms = [
            (f"{name}.{own}".lstrip("."), buffer)
            for name, layer in norm_layers(module)
            for own, buffer in layer.named_buffers(recurse=False)
            if buffer.is_floating_point() and self._present(NormGuard) is None  # which puts them back by itself
        ]
        dense = getattr(getattr(getattr(trainer, "datamodule", None), "schema", None), "dense", ())
        self._sample: LabelSample | None = (
            None if record.leaks or record.steps else LabelSample([f.name for f in dense])
        )
        self._norm_now: float | None = None
        self._rates = RateRecorder(record, trainer)
        self._recent = RecentBatches(record, trainer, scaled=scaled)
        self._growth = WeightGrowth(record, trainer, module)
        self._began_at = trainer.global_step

    def start_batch(self, module: pl.LightningModule, batch: Any) -> None:
        """Call before a training batch."""
        self._began_at = self._trainer.global_step
        if self._skips is not None:
            self._skips.watch.start_batch(module, batch)
        if self._sample is not None:
            self._sample.add(batch)
            if self._sample.full:
                self._record.leaks, self._sample = self._sample.verdicts(), None

    def before_backward(self, module: pl.LightningModule, loss: Tensor) -> None:
        """Call before each backward pass."""
        if self._skips is not None:
            self._skips.watch.see_loss(loss)
        if self._stands_in and self._underflow is not None:
            self._underflow.on_before_backward(self._trainer, module, loss)

    def after_backward(self, module: pl.LightningModule) -> None:
        """Call after each backward pass."""
        if self._stands_in and self._underflow is not None:
            self._underflow.on_after_backward(self._trainer, module)

    def before_step(self, module: pl.LightningModule, optimizer: Optimizer) -> None:
        """Call before the step of an optimizer."""
        if self._skips is not None:
            self._skips.expect_step(module, optimizer)
        step = self._trainer.global_step
        if self._warmup is None:
            rates = [group["lr"] for group in optimizer.param_groups]
            if all(isinstance(rate, float | int) for rate in rates) or is_logging_step(self._trainer):
                self._rates.add(optimizer, step, max(float(rate) for rate in rates))
        if self._clipping is None and is_logging_step(self._trainer):
            self._norm_now = true_gradient_norm(self._trainer, optimizer)

    def end_batch(self, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Call when the batch is done."""
        step, logs = self._trainer.global_step, is_logging_step(self._trainer)
        self._recent.add(batch, number=batch_idx, step=self._began_at, ended=step, outputs=outputs)
        if self._skips is not None:
            before = self._skips.history.skipped
            self._skips.end_batch(module, read_device=logs)
            self._record.history = self._skips.history
            if self._skips.history.skipped > before:
                self._record.take_skips(self._skips.events)
                self._recent.look()
            if logs:
                scale, skipped = self._skips.history.scale, self._skips.history.skipped
                values = {"loss_scale": scale, "loss_scale/skipped_steps": float(skipped)}
                log_metrics(self._trainer, values, progress_bar={"scale": scale, "skipped": skipped})
        elif self._scale_monitor is not None and self._scale_monitor.history.skipped > self._record.history.skipped:
            self._record.history = _copied(self._scale_monitor.history)
            self._record.take_skips(self._scale_monitor.events)
            self._recent.look()
        if self._warmup is not None:
            for optimizer, rates in zip(self._trainer.optimizers, self._warmup.effective_lr, strict=False):
                self._rates.add(optimizer, step, max(rates))
        self._end_probe(module, outputs, batch, batch_idx)
        self._record.steps = max(step, self._record.steps)
        if logs:
            self._on_log(outputs, step)
            self._recent.forget()
        elif "train_loss" not in self._record.series and (loss := self._recent.loss(outputs)) is not None:
            self._record.add("train_loss", step, loss)  # where the run began, once

    def see_metrics(self) -> None:
        """Call at the end of a validation: its metrics, and whether the normalisations are still finite."""
        for name, value in list(self._trainer.callback_metrics.items()):
            if name.startswith(("val", "validation")) and value.numel() == 1 and len(self._record.series) < 40:
                self._record.add(name, self._trainer.global_step, float(value))
        self._look_at_norms(self._trainer.global_step)

    def finish(self, module: pl.LightningModule | None = None) -> None:
        """Call at the end of the fit, or where it breaks off, then without the module."""
        if self._sample is not None:
            self._record.leaks, self._sample = self._sample.verdicts(), None
        try:
            self._finish(module)
        finally:
            self._let_go(module)

    def _finish(self, module: pl.LightningModule | None) -> None:
        if self._scale_monitor is not None:
            self._record.history = _copied(self._scale_monitor.history)
            self._record.take_skips(self._scale_monitor.events)
        if self._skips is not None:
            if module is not None:
                self._skips.finish(module)
            self._record.history = _copied(self._skips.history)
            self._record.take_skips(self._skips.events)
        if self._record.history.attempts:
            self._record.add("loss_scale", self._trainer.global_step, self._record.history.scale)
        self._take_probe()
        self._look_at_norms(self._trainer.global_step)
        self._growth.look(self._trainer.global_step)
        if module is None or len(self._record.series.get("train_loss", Series()).points) < 2:
            self._recent.tell_losses()
            if self._record.series.get("train_loss", Series()).gaps:
                self._recent.look()
        now = time.monotonic()
        self._record.seconds += now - self._clock
        self._clock = now

    def _let_go(self, module: pl.LightningModule | None) -> None:
        if self._skips is not None:
            self._skips.release()
            self._skips = None
        self._recent.release()
        if self._stands_in and self._underflow is not None:
            self._underflow.teardown(self._trainer, module or self._trainer.lightning_module, "fit")
            self._underflow = None

    def _present(self, kind: type[Any]) -> Any:
        callbacks: Iterable[Any] = self._trainer.callbacks  # type: ignore[attr-defined] # Lightning sets it elsewhere
        return next((callback for callback in callbacks if isinstance(callback, kind)), None)

    def _on_log(self, outputs: Any, step: int) -> None:
        record, trainer = self._record, self._trainer
        metrics = trainer.callback_metrics
        loss = self._recent.loss(outputs)
        if loss is None and (logged := metrics.get("train_loss")) is not None and logged.numel() == 1:
            loss = float(logged)
        if loss is not None:
            record.add("train_loss", step, loss)
            if not math.isfinite(loss):
                self._recent.look()
        self._growth.look(step)
        history = self._skips.history if self._skips is not None else None
        history = self._scale_monitor.history if self._scale_monitor is not None else history
        if history is not None and history.attempts:
            record.add("loss_scale", step, history.scale)
        norm = float(metrics["gradient_norm"]) if self._clipping and "gradient_norm" in metrics else self._norm_now
        if norm is not None:
            record.add("gradient_norm", step, norm)
        self._norm_now = None
        record.add("memory/resident", step, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0)
        device = trainer.strategy.root_device
        if device.type == "cuda":
            record.add("memory/gpu", step, float(torch.cuda.max_memory_allocated(device)))
        self._look_at_norms(step)

    def _end_probe(self, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._underflow is None:
            return
        if self._stands_in:
            self._underflow.on_train_batch_end(self._trainer, module, outputs, batch, batch_idx)
        self._take_probe()

    def _take_probe(self) -> None:
        report = self._underflow.report if self._underflow is not None else None
        if report is None or report is self._seen_probe:
            return
        self._seen_probe = report
        histogram = self._underflow.histogram if self._underflow is not None else None
        self._record.take_probe(report, None if histogram is None else histogram.headroom_bits)
        if self._stands_in and self._underflow is not None:
            self._underflow.every_n_steps = self._probe_every

    def _look_at_norms(self, step: int) -> None:
        if self._record.poisoned is None and self._norms:
            flags = finite_flags([buffer for _, buffer in self._norms]).tolist()
            bad = [name for (name, _), finite in zip(self._norms, flags, strict=True) if not finite]
            if bad:
                self._record.poisoned = {"step": step, "names": bad[:10]}


def _copied(history: LossScaleHistory) -> LossScaleHistory:
    return replace(history, consecutive=dict(history.consecutive))
