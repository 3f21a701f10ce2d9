"""The facts of a report in plain JSON: what was recorded, and what the Trainer and its callbacks know at the end."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch import nn

import lightning_mp
from lightning_mp.callbacks.gradient_clipping import GradientClipping
from lightning_mp.callbacks.gradient_underflow_monitor import GradientUnderflowMonitor
from lightning_mp.callbacks.keep_in_fp32 import KeepInFP32
from lightning_mp.callbacks.learning_rate_warmup import LearningRateWarmup
from lightning_mp.callbacks.loss_fluctuation_monitor import LossFluctuationMonitor
from lightning_mp.callbacks.loss_scale_monitor import LossScaleMonitor
from lightning_mp.callbacks.non_finite_monitor import NonFiniteMonitor
from lightning_mp.callbacks.norm_guard import NormGuard
from lightning_mp.callbacks.onnx_export import OnnxExport
from lightning_mp.callbacks.precision_report_artefacts import data_facts, export_facts, told_by_others
from lightning_mp.callbacks.precision_report_record import RunRecord
from lightning_mp.optim.warmup_decay_lr import WarmupDecayLR
from lightning_mp.precision.loss_scale_verdict import collapse, forecast_text
from lightning_mp.precision.non_finite import non_finite_names
from lightning_mp.precision.norm_buffers import norm_layers
from lightning_mp.precision.underflow_report import UnderflowReport, underflow_text

_LAYERS: Final = 40
_THRESHOLD: Final = 0.01


def gathered(record: RunRecord, trainer: pl.Trainer, module: pl.LightningModule) -> dict[str, Any]:
    """All that the page shows but the findings.

    Args:
        record: What was recorded.
        trainer: At the end of its fit, or where it broke off.
        module: That was trained.

    Returns:
        Plain JSON; what could not be measured is `None`.
    """
    callbacks: list[Any] = list(trainer.callbacks)  # type: ignore[attr-defined] # Lightning sets it elsewhere
    series = {name: one.to_record() for name, one in record.series.items()}
    return {
        "run": _run(record, trainer, module, callbacks),
        "loss_scale": _loss_scale(record, trainer, callbacks, series.pop("loss_scale", None)),
        "learning_rate": {name: series.pop(name) for name in list(series) if name.startswith("lr-")},
        "warmup": _warmup(record, trainer, callbacks),
        "gradients": {"norm": series.pop("gradient_norm", None), **_clipping(trainer, callbacks)},
        "memory": {
            "resident": series.pop("memory/resident", None),
            "gpu": series.pop("memory/gpu", None),
            "gpu_total": _gpu_total(trainer),
        },
        "metrics": series,
        "underflow": _underflow(record, callbacks),
        "float32": _float32(module, _first(callbacks, KeepInFP32)),
        "finite": _finite(record, module, callbacks),
        "fluctuation": _fluctuation(callbacks),
        "data": data_facts(trainer),
        "leaks": record.leaks,
        "export": export_facts(_first(callbacks, OnnxExport)),
        "lint": told_by_others(callbacks),
    }


def evaluated(trainer: pl.Trainer) -> dict[str, float | None]:
    """Metrics of an evaluation; `None` for what is not finite."""
    values = {name: float(value) for name, value in trainer.callback_metrics.items() if value.numel() == 1}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _run(record: RunRecord, trainer: pl.Trainer, module: pl.LightningModule, callbacks: list[Any]) -> dict[str, Any]:
    device = trainer.strategy.root_device
    return {
        "module": type(module).__name__,
        "parameters": sum(p.numel() for p in module.parameters() if not isinstance(p, nn.UninitializedParameter)),
        "precision": str(trainer.precision),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "strategy": type(trainer.strategy).__name__,
        "processes": trainer.world_size,
        "epochs": trainer.current_epoch,
        "steps": record.steps,
        "logged_every_n_steps": getattr(trainer, "log_every_n_steps", None),
        "seconds": round(record.seconds, 1),
        "began": record.began,
        "callbacks": [type(callback).__name__ for callback in callbacks],
        "versions": {
            "lightning_mp": lightning_mp.__version__,
            "torch": torch.__version__,
            "lightning": version("lightning"),
            "python": platform.python_version(),
        },
    }


def _loss_scale(
    record: RunRecord, trainer: pl.Trainer, callbacks: list[Any], series: dict[str, Any] | None
) -> dict[str, Any]:
    monitor, history = _first(callbacks, LossScaleMonitor), record.history
    least, patience = getattr(monitor, "min_scale", 1.0), getattr(monitor, "patience", 20)
    scaler = trainer.scaler
    verdict = collapse(history, record.skips, min_scale=least, patience=patience) if history.skipped else None
    forecast = monitor.forecast if monitor is not None else None
    return {
        "scaled": scaler is not None and scaler.is_enabled(),
        "series": series,
        "attempts": history.attempts,
        "skipped": history.skipped,
        "skip_rate": history.skip_rate,
        "consecutive": history.longest_consecutive,
        "scale": history.scale if history.attempts else None,
        "growth_interval": scaler.get_growth_interval() if scaler is not None and scaler.is_enabled() else None,
        "skips": [event.to_dict() for event in record.skips],
        "collapse": None if verdict is None else list(verdict),
        "forecast": None if forecast is None else list(forecast_text(forecast, min_scale=least)),
        "told_by": "LossScaleMonitor" if monitor is not None else "PrecisionReport",
    }


def _warmup(record: RunRecord, trainer: pl.Trainer, callbacks: list[Any]) -> dict[str, Any] | None:
    schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
    decay, steps = _first(schedules, WarmupDecayLR), record.steps // max(1, len(trainer.optimizers))
    if (warmup := _first(callbacks, LearningRateWarmup)) is not None:
        taken = min(warmup.steps, default=0)  # a skipped step warms nothing up
        return {"by": "LearningRateWarmup", "steps": warmup.warmup_steps, "taken": taken, "of": steps}
    if decay is None:
        return None
    taken = min(decay.last_epoch, decay.warmup_steps)
    return {"by": "WarmupDecayLR", "steps": decay.warmup_steps, "taken": taken, "of": steps}


def _clipping(trainer: pl.Trainer, callbacks: list[Any]) -> dict[str, Any]:
    clipping = _first(callbacks, GradientClipping)
    if clipping is not None:
        given = {name: getattr(clipping, name) for name in ("max_norm", "max_value", "fp32_threshold")}
        limits = {name: value for name, value in given.items() if value is not None}
        share = clipping.clipped_steps / clipping.steps if clipping.steps else None
        return {"clipped_by": "GradientClipping", "limits": limits, "clipped_share": share, "steps": clipping.steps}
    value = trainer.gradient_clip_val
    limits = {"gradient_clip_val": float(value)} if value else {}
    return {"clipped_by": "Trainer" if value else None, "limits": limits, "clipped_share": None, "steps": None}


def _underflow(record: RunRecord, callbacks: list[Any]) -> dict[str, Any]:
    monitor = _first(callbacks, GradientUnderflowMonitor)
    threshold = getattr(monitor, "lost_norm_threshold", _THRESHOLD)
    lost = [_lost(probe) for probe in record.probes]
    told = None
    if lost and lost[-1] > threshold:
        told = list(underflow_text(record.probes[-1], threshold=threshold, headroom=record.headroom))
    elif sum(share > threshold for share in lost) > len(lost) / 2:
        worst = record.probes[lost.index(max(lost))]
        problem, cure = underflow_text(worst, threshold=threshold, headroom=None)
        told = [f"{problem}; the scale has grown since, and less is lost at the end", cure]
    return {
        "threshold": threshold,
        "headroom_bits": record.headroom,
        "told": told,
        "told_by": "GradientUnderflowMonitor" if monitor is not None else "PrecisionReport",
        "probes": [
            {
                "step": probe.step, "scale": probe.scale, "lost_norm": probe.lost_norm,
                "flushed_fraction": probe.flushed_fraction, "bits": probe.bits,
                "layers": {layer.layer: layer.lost_norm for layer in probe.layers},
            }
            for probe in record.probes
        ],
    }  # fmt: skip


def _lost(probe: UnderflowReport) -> float:
    """Of the worst layer; what a smaller scale would lose halves with each bit that this one is larger."""
    return max((layer.lost_norm for layer in probe.layers), default=0.0) * 2.0 ** min(probe.bits, 0)


def _float32(module: nn.Module, keep: KeepInFP32 | None) -> dict[str, Any]:
    layers: dict[str, dict[str, Any]] = {}
    for name in keep.layers if keep is not None else ():
        auto = keep is not None and keep.modules == "auto"
        why = "input or output layer, found in one forward pass" if auto else "named in KeepInFP32"
        if keep is not None and name in keep.near_overflow:
            size = keep.near_overflow[name]
            why = f"reached |x| = {size:.4g} in float16" if size < float("inf") else "overflowed in the forward pass"
        kind = type(dict(module.named_modules()).get(name)).__name__
        verified = keep.verified.get(name) if keep is not None else None
        layers[name] = {"layer": name, "type": kind, "why": why, "verified": verified}
    norms = {name for name, _ in norm_layers(module)}
    for name, inner in module.named_modules():
        if name in layers or len(layers) >= _LAYERS:
            continue
        if isinstance(inner, nn.Embedding | nn.EmbeddingBag):
            why = "a look-up, which autocast does not cast"
        elif name in norms:
            why = "weights and running statistics; autocast does not cast them"
        else:
            continue
        layers[name] = {"layer": name, "type": type(inner).__name__, "why": why, "verified": None}
    return {"kept_by": None if keep is None else "KeepInFP32", "layers": list(layers.values())}


def _finite(record: RunRecord, module: nn.Module, callbacks: list[Any]) -> dict[str, Any]:
    guard, monitor = _first(callbacks, NormGuard), _first(callbacks, NonFiniteMonitor)
    weights = {n: p for n, p in module.named_parameters() if not isinstance(p, nn.UninitializedParameter)}
    events = [event.to_dict() | {"text": str(event)} for event in monitor.events] if monitor is not None else []
    named = next((event for event in events if event["tensor"].startswith("batch")), None)
    return {
        "weights": non_finite_names(weights)[:10],
        "poisoned": record.poisoned,
        "bad_batch": record.bad_batch or named,
        "loss_gone": record.loss_gone,
        "growth": record.growth,
        "events": events[:20],
        "restored": None if guard is None else guard.restored,
    }


def _fluctuation(callbacks: list[Any]) -> dict[str, Any] | None:
    monitor = _first(callbacks, LossFluctuationMonitor)
    if monitor is None:
        return None
    reports = [report.to_dict() for report in monitor.reports if not report.improved]
    return {"monitor": monitor.monitor, "threshold": monitor.threshold, "reports": reports}


def _first(callbacks: Iterable[Any], kind: type[Any]) -> Any:
    return next((callback for callback in callbacks if isinstance(callback, kind)), None)


def _gpu_total(trainer: pl.Trainer) -> int | None:
    device = trainer.strategy.root_device
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None
