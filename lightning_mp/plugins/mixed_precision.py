"""The precision plugin of a training, chosen by the hardware, with a loss scale that cannot die."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_mp.errors import ConfigurationError, EnvironmentMismatchError, LightningMPWarning
from lightning_mp.hardware.facts import Hardware
from lightning_mp.precision.bounded_grad_scaler import BoundedGradScaler
from lightning_mp.precision.choose_precision import choose_precision

PrecisionName = Literal["auto", "16-mixed", "bf16-mixed", "32-true"]
DeviceName = Literal["auto", "cpu", "cuda"]


def mixed_precision(
    precision: PrecisionName = "auto",
    device: DeviceName = "auto",
    *,
    init_scale: float = 1024.0,
    growth_interval: int | None = None,
    total_steps: int | None = None,
    min_scale: float = 1.0,
    max_scale: float = 2.0**24,
) -> Precision:
    """Build the precision plugin of a training: `Trainer(plugins=[mixed_precision()])`, or as `class_path` in YAML.

    The plugin is Lightning's own, so checkpoints of a run with it and of one with `Trainer(precision=...)` load in
    each other; the scaler inside is a `BoundedGradScaler`. What was chosen, and why, is logged. Lightning takes
    either a plugin or the argument `precision`, not both.

    Args:
        precision: `"16-mixed"`, `"bf16-mixed"`, `"32-true"`, or `"auto"`: float16 where the hardware multiplies it (a
            GPU of compute capability 7.0 or newer, a processor with `avx512_fp16` or `amx_fp16`), else bfloat16 where
            it has that, else float32.
        device: `"cpu"`, `"cuda"`, or `"auto"`: `"cuda"` where torch sees a GPU. Set it where the Trainer's
            `accelerator` is not what it would choose itself.
        init_scale: Loss scale to begin with.
        growth_interval: Steps in a row without overflow before the scale doubles; None for 200, a tenth of torch's,
            with which one bad batch in 1000 steps already kills a scale without a floor.
        total_steps: Optimizer steps of the run, about, where `growth_interval` is None: a run below 10 000 gets a
            shorter interval, a fiftieth of its steps but at least 10, so that the scale finds its place in time. It has
            no steps to lose: after an overflow the scale falls to an eighth, and waits 200 steps before it grows.
        min_scale: Floor of the loss scale.
        max_scale: Ceiling of the loss scale.

    Returns:
        `MixedPrecision`, or `Precision` for float32.

    Raises:
        ConfigurationError: An argument is none of the values above, or the scales are not in order.
        EnvironmentMismatchError: `device` is `"cuda"` and torch sees no GPU.

    Example:
        >>> plugin = mixed_precision("bf16-mixed", "cpu")
        >>> type(plugin).__name__, plugin.precision
        ('MixedPrecision', 'bf16-mixed')
    """
    if precision not in get_args(PrecisionName):
        names = ", ".join(f"`{name}`" for name in get_args(PrecisionName))
        raise ConfigurationError(f"`precision` must be one of {names}, got {precision!r}", "use `auto`")
    if device not in get_args(DeviceName):
        raise ConfigurationError(f"`device` must be `auto`, `cpu` or `cuda`, got {device!r}", "use `auto`")
    if device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentMismatchError("`device` is `cuda`, and torch sees no GPU", "use `auto`, or mend the driver")
    if total_steps is not None and (total_steps < 1 or growth_interval is not None):
        raise ConfigurationError(
            f"`total_steps` must be at least 1 and excludes `growth_interval`, got {total_steps!r}",
            "give the steps of the run, or the interval",
        )
    retry_interval, backoff_factor = None, 0.5
    if growth_interval is None:
        growth_interval = 200 if total_steps is None else min(max(total_steps // 50, 10), 200)
        if growth_interval < 200:
            retry_interval, backoff_factor = 200, 0.125
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    scaler = BoundedGradScaler(  # made for every precision, so that wrong scales are found on every machine
        place,
        init_scale=init_scale,
        growth_interval=growth_interval,
        retry_interval=retry_interval,
        backoff_factor=backoff_factor,
        min_scale=min_scale,
        max_scale=max_scale,
    )
    capability = torch.cuda.get_device_capability() if place == "cuda" else None
    flags = Hardware.read().cpu_flags if capability is None else ()
    chosen, reason = choose_precision(capability=capability, cpu_flags=flags)
    wanted = chosen if precision == "auto" else precision
    if precision == "auto":
        rank_zero_info(f"precision `{chosen}` on `{place}`: {reason}")
    elif wanted == "16-mixed" and chosen != "16-mixed":
        rank_zero_warn(
            f"precision `16-mixed` was asked for on `{place}`, which emulates float16 many times slower than float32: "
            f"{reason}\n\nhint: use `auto`, which takes `{chosen}` here",
            category=LightningMPWarning,
        )
    if wanted == "32-true":
        return Precision()
    return MixedPrecision(wanted, place, scaler if wanted == "16-mixed" else None)
