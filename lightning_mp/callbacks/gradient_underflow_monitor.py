"""Measure, rather than guess, what float16 gradients lose at the loss scale of the run."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_mp.callbacks.detached_state import detached_state
from lightning_mp.callbacks.highest_of_processes import highest_of_processes
from lightning_mp.callbacks.log_metrics import log_metrics
from lightning_mp.errors import ConfigurationError, LightningMPWarning
from lightning_mp.precision.gradient_sample import ExponentHistogram, GradientSample
from lightning_mp.precision.loss_graph import loss_graph
from lightning_mp.precision.norm_buffers import NormBuffers
from lightning_mp.precision.two_scale_probe import TwoScaleProbe
from lightning_mp.precision.underflow_report import UnderflowReport, underflow_report, underflow_text

_MEMORY = 64 * 2**20
_WHOLE_MODULE = {"SingleDeviceStrategy", "DDPStrategy"}  # each process has all of it, and no pass waits for another's


class GradientUnderflowMonitor(Callback):
    """Tell which layers' gradients underflow in float16 at the loss scale of the run, and the scale that cures it.

    Two measurements, of the gradients as the backward pass makes them, before anything adds, averages, unscales or
    clips them; so they are right for plain and fused optimizers, accumulation, manual optimization and DDP (each
    process measures its own, the first one's are logged). The weights are the same with and without it.

    - Every `every_n_steps` optimizer steps the exponents of a sample of each gradient are counted. Whether a gradient
      came out of float16 at all is told from its values.
    - Every `probe_every_n_steps`, and the first time of all, the truth: the backward pass runs once more on the same
      graph at a loss scale 2**`probe_bits` times as large, and what it brings back is what is lost. Embedding tables,
      dense and sparse, are compared by the rows that were looked up.

    The probe keeps at most 64 MiB of gradients, on a GPU at most half of what lies free below the run's peak memory so
    far; of larger modules another part is taken each time. It is left out, with one warning, on compiled graphs, where
    a second backward pass may be wrong, under re-entrant checkpoints, which refuse it, and for sharded modules. On
    steps that measure, the device is read a few times, on others never. A run without a scaler is left alone.

    Args:
        every_n_steps: Optimizer steps between two samples.
        samples_per_tensor: Most values sampled of one gradient; fewer where there are many, 2**17 together.
        probe_every_n_steps: Optimizer steps between two probes.
        probe_bits: Bits between the two loss scales of a probe. Where the larger one overflows, fewer are taken.
        lost_norm_threshold: Lost norm of a layer, in (0, 1), from which on there is a warning, once a run.
        top_k: Number of worst layers to log.

    Attributes:
        report: What the last probe found, all layers included.
        histogram: The last sample's counts.

    Logs:
        `underflow/lost_norm`: norm of what was lost over the norm of the true gradient, in [0, 1], all probed
            parameters together; like all of them once a measurement, at its step.
        `underflow/lost_norm/<layer>`: the same of one layer, for the `top_k` worst.
        `underflow/flushed_fraction`: share of the gradients' values other than zero that became zero, in [0, 1].
        `underflow/subnormal_fraction`: share of the sampled values other than zero that lost bits, in [0, 1].
        `underflow/headroom_bits`: doublings of the loss scale until the largest gradient overflows.

    Raises:
        ConfigurationError: A number is not positive, or the threshold is not in (0, 1).

    Example:
        >>> monitor = GradientUnderflowMonitor()
        >>> trainer = pl.Trainer(callbacks=[monitor], logger=False, enable_checkpointing=False)
    """

    def __init__(
        self,
        every_n_steps: int = 50,
        *,
        samples_per_tensor: int = 4096,
        probe_every_n_steps: int = 500,
        probe_bits: int = 8,
        lost_norm_threshold: float = 0.01,
        top_k: int = 5,
    ) -> None:
        self.every_n_steps = every_n_steps
        self.samples_per_tensor = samples_per_tensor
        self.probe_every_n_steps = probe_every_n_steps
        self.probe_bits = probe_bits
        self.top_k = top_k
        for name in ("every_n_steps", "samples_per_tensor", "probe_every_n_steps", "probe_bits", "top_k"):
            if not getattr(self, name) >= 1:
                raise ConfigurationError(f"`{name}` must be at least 1, got {getattr(self, name)!r}", "leave it out")
        if not 0 < lost_norm_threshold < 1:
            raise ConfigurationError(
                f"`lost_norm_threshold` must lie in (0, 1), got {lost_norm_threshold!r}", "use 0.01"
            )
        self.lost_norm_threshold = lost_norm_threshold
        self.report: UnderflowReport | None = None
        self.histogram: ExponentHistogram | None = None
        self._forget()

    def _forget(self) -> None:
        self._sample: GradientSample | None = None
        self._probe: TwoScaleProbe | None = None
        self._measuring = self._sampling = self._probing = False
        self._refused = self._warned = self._reported = False
        self._measured_at = self._probe_again_at = self._step = -1
        self._scale = 0.0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._release()
        self._forget()
        self.report = self.histogram = None
        scaler = trainer.scaler
        if scaler is None or not scaler.is_enabled():
            rank_zero_info(
                f"`GradientUnderflowMonitor` found no gradient scaler: the run uses precision `{trainer.precision}`, "
                "which has none; the monitor stays idle"
            )
            return
        trained = {name: value for name, value in pl_module.named_parameters() if value.requires_grad}
        self._sample = GradientSample(trained, samples=self.samples_per_tensor)
        self._probe = TwoScaleProbe(trained, bits=self.probe_bits, memory=_MEMORY)
        if type(trainer.strategy).__name__ not in _WHOLE_MODULE:
            self._refuse(f"`{type(trainer.strategy).__name__}` may hold parts of the module in other processes")

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        if self._sample is None:
            return
        step = trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001 - the step count that logging goes by
        if not self._measuring and (step == self._measured_at or not self._due(trainer, step)):
            return
        if not self._measuring:
            self._measuring, self._measured_at = True, step
            self._probing = not self._refused and (not self._reported or self._probe_due(step))
            self._scale = trainer.scaler.get_scale() if trainer.scaler else 0.0
            self._step = trainer.global_step
        if self._probing:
            self._start_probe(trainer, pl_module, loss)
        self._sample.attach()  # after the probe, whose pass the hooks would see

    @override
    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._measuring and self._sample is not None and self._probe is not None:
            self._sample.detach()
            self._probe.release()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._measuring:
            return
        self._measuring = False
        log_metrics(trainer, self._finish(trainer), step=self._measured_at)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._release()

    def __getstate__(self) -> dict[str, Any]:
        return detached_state(self.__dict__, run=["_sample", "_probe", "histogram"])

    def _due(self, trainer: pl.Trainer, step: int) -> bool:
        sample = (step + 1) % self.every_n_steps == 0 or bool(getattr(trainer, "fast_dev_run", False))
        return sample or self._probe_due(step)

    def _probe_due(self, step: int) -> bool:
        return (step + 1) % self.probe_every_n_steps == 0 or step == self._probe_again_at

    def _start_probe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        graph = loss_graph(loss)
        if highest_of_processes(trainer, float(bool(graph.refusal))):
            self._refuse(graph.refusal or "it cannot run in another process")
        if self._refused or self._probe is None:
            return
        buffers = NormBuffers(pl_module)  # a checkpointed segment runs its forward pass again, and moves them
        buffers.save()
        try:
            with torch.random.fork_rng([loss.device] if loss.device.type == "cuda" else []):
                self._probe.start(loss, graph, highest=lambda state: highest_of_processes(trainer, state))
        except RuntimeError as error:
            self._refuse(f"a second backward pass failed ({str(error).splitlines()[0]})")
        finally:
            buffers.restore()

    def _refuse(self, reason: str) -> None:
        self._refused, self._probing = True, False
        if self._probe is not None:
            self._probe.release()
        rank_zero_warn(
            f"`GradientUnderflowMonitor` leaves its probe out: {reason}\n\n"
            "hint: read `underflow/subnormal_fraction`; what is really lost is not known in this run",
            category=LightningMPWarning,
        )

    def _finish(self, trainer: pl.Trainer) -> dict[str, float]:
        if self._sample is None or self._probe is None:
            return {}
        self.histogram = self._sample.histogram() or self.histogram
        found: dict[str, float | None] = {}
        if self.histogram is not None:
            found["underflow/subnormal_fraction"] = self.histogram.subnormal_fraction
            found["underflow/headroom_bits"] = self.histogram.headroom_bits
        report = underflow_report(self._probe.finish(), step=self._step, scale=self._scale, bits=self._probe.bits)
        headroom = found.get("underflow/headroom_bits")
        if report is not None:
            self.report = report
            found["underflow/lost_norm"] = report.lost_norm
            found["underflow/flushed_fraction"] = report.flushed_fraction
            for layer in report.layers[: self.top_k]:
                found[f"underflow/lost_norm/{layer.layer}"] = layer.lost_norm
            bounds = [bits for bits in (headroom, self._probe.overflowed_at) if bits is not None]
            found["underflow/headroom_bits"] = headroom = min(bounds, default=None)
        if self._probing:
            state = highest_of_processes(trainer, 0.0 if report is None else 1.0 + self._probe.doubtful(report))
            self._reported |= state > 0
            if state and self._probe.takes_more_bits(doubtful=state > 1):
                self._probe_again_at = self._measured_at + 1
            elif report is not None:
                self._judge(report, headroom)
        return {name: value for name, value in found.items() if value is not None}

    def _judge(self, report: UnderflowReport, headroom: float | None) -> None:
        worst = max((layer.lost_norm for layer in report.layers), default=0.0)
        # Where the scale cannot rise, what a smaller one would lose was measured; each bit halves it.
        if worst * 2.0 ** min(report.bits, 0) > self.lost_norm_threshold and not self._warned:
            self._warned = True
            problem, hint = underflow_text(report, threshold=self.lost_norm_threshold, headroom=headroom)
            rank_zero_warn(f"{problem}\n\nhint: {hint}", category=LightningMPWarning)

    def _release(self) -> None:
        if self._sample is not None:
            self._sample.detach()
        if self._probe is not None:
            self._probe.release()
        self._sample = self._probe = None
        self._measuring = False
