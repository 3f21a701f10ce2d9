"""Count what a gradient scaler does, on the host, and predict when its scale will die."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from lightning_mp.float_formats import FLOAT32

# Gradients are multiplied by 1 / scale; halved once more, its reciprocal is infinite in float32, and 0 * inf is NaN.
_LAST_SCALE: Final = 2.0**-FLOAT32.largest_exponent
_BURSTS_FOR_A_FORECAST: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSettings:
    """How a gradient scaler moves its scale.

    Args:
        growth_factor: Factor of a growth, above 1.
        backoff_factor: Factor of a skipped step, in (0, 1).
        growth_interval: Steps in a row without overflow before a growth.
        retry_interval: The same after an overflow, where that is more.
        floor: Smallest scale it allows; 0 for the stock scaler.
        ceiling: Largest scale it allows.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    retry_interval: int = 0
    floor: float = 0.0
    ceiling: float = FLOAT32.largest


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleForecast:
    """When a falling loss scale will do harm, if the run goes on as it did.

    Args:
        steps_to_minimum: Optimizer steps until the scale is below the minimum.
        steps_to_destruction: Optimizer steps until the next finite batch writes NaN into the weights.
        skip_rate: Share in [0, 1] of steps skipped in the window that was looked at.
    """

    steps_to_minimum: int
    steps_to_destruction: int
    skip_rate: float


@dataclass(slots=True, kw_only=True)
class LossScaleHistory:
    """Optimizer steps attempted and skipped, with a copy of the scale kept without reading the device.

    The copy follows the rule of `torch.amp.GradScaler.update`; it is corrected whenever the true scale is read.

    Args:
        scale: Loss scale now.
        clean_steps: Steps in a row without overflow, what the scaler calls its growth tracker.
        attempts: Optimizer steps tried.
        skipped: Optimizer steps that the scaler skipped.
        consecutive: Skips in a row up to now, by position of the optimizer.

    Example:
        >>> history = LossScaleHistory(scale=4.0)
        >>> for skipped in (True, True, False):
        ...     history.record(0, skipped, ScalerSettings())
        >>> history.scale, history.attempts, history.skipped, history.skip_rate, history.longest_consecutive
        (1.0, 3, 2, 0.6666666666666666, 0)

    Source:
        The rule of the scale: `aten/src/ATen/native/cuda/AmpKernels.cu`, `amp_update_scale_cuda_kernel`.
    """

    scale: float = 1.0
    clean_steps: int = 0
    attempts: int = 0
    skipped: int = 0
    consecutive: dict[int, int] = field(default_factory=dict)
    # What the forecast looks at: everything after the first step taken, so that the search for a first
    # scale at the start of a run does not count; old entries fade.
    window_attempts: float = 0.0
    window_skips: float = 0.0
    window_growths: float = 0.0
    window_bursts: int = 0

    @property
    def skip_rate(self) -> float:
        """Share in [0, 1] of attempted steps that were skipped; 0 before the first."""
        return self.skipped / self.attempts if self.attempts else 0.0

    @property
    def longest_consecutive(self) -> int:
        """Skips in a row up to now, of the optimizer that has most."""
        return max(self.consecutive.values(), default=0)

    @property
    def log2(self) -> float:
        """Logarithm of the scale to base 2; -150, below float32's smallest subnormal, for a scale of zero."""
        return math.log2(self.scale) if self.scale > 0 else -150.0

    @property
    def is_dead(self) -> bool:
        """True where no growth can bring the scale back and the next finite batch destroys the weights."""
        return not math.isfinite(self.scale) or self.scale <= 0 or 1 / self.scale > FLOAT32.largest

    def record(self, optimizer: int, skipped: bool, settings: ScalerSettings) -> None:
        """Count one attempted step and move the copy of the scale as the scaler does.

        Args:
            optimizer: Position of the optimizer in the Trainer's list.
            skipped: Whether the scaler skipped it.
            settings: How the scaler moves its scale.
        """
        self.attempts += 1
        self.skipped += skipped
        in_window = self.window_attempts > 0 or not skipped
        first_of_burst = skipped and self.longest_consecutive == 0
        self.consecutive[optimizer] = self.consecutive.get(optimizer, 0) + 1 if skipped else 0
        grown = False
        if skipped:
            self.clean_steps = min(settings.growth_interval - settings.retry_interval, 0)
            self.scale = max(self.scale * settings.backoff_factor, settings.floor)
        else:
            self.clean_steps += 1
            if self.clean_steps >= settings.growth_interval:
                self.clean_steps = 0
                grown = True
                # The stock kernel leaves a scale alone whose growth would be infinite.
                larger = self.scale * settings.growth_factor
                self.scale = min(larger, settings.ceiling) if larger <= FLOAT32.largest else self.scale
        if in_window:
            self.window_attempts += 1
            self.window_skips += skipped
            self.window_growths += grown
            self.window_bursts += first_of_burst
            if self.window_attempts > max(10_000, 8 * settings.growth_interval):
                self.window_attempts /= 2
                self.window_skips /= 2
                self.window_growths /= 2

    def forecast(self, min_scale: float, settings: ScalerSettings) -> ScaleForecast | None:
        """Predict when the scale dies if skips and growths go on at the rate seen.

        Every skip takes `log2(1 / backoff_factor)` bits and every growth gives `log2(growth_factor)`. A growth
        needs `growth_interval` steps in a row without a skip, so one bad batch more often than that and the
        scale can only fall.

        Args:
            min_scale: Scale below which gradients are taken as lost.
            settings: How the scaler moves its scale.

        Returns:
            The forecast, or None while the scale does not fall, cannot fall below `min_scale`, or fewer than
            three separate skips were seen.

        Example:
            >>> history = LossScaleHistory(scale=2.0**16)
            >>> for step in range(5000):
            ...     history.record(0, step % 1000 == 999, ScalerSettings())
            >>> history.scale, history.forecast(1.0, ScalerSettings()).steps_to_minimum
            (2048.0, 12000)
        """
        bits_per_skip = -math.log2(settings.backoff_factor)
        lost = self.window_skips * bits_per_skip - self.window_growths * math.log2(settings.growth_factor)
        if (
            self.window_bursts < _BURSTS_FOR_A_FORECAST
            or lost <= 0
            or settings.floor >= min_scale
            or self.scale < min_scale
            or self.is_dead
        ):
            return None
        # A scale falls in whole skips, so the bits left are rounded up to them, and one more goes below.
        steps_per_bit = self.window_attempts / lost

        def steps_until(limit: float) -> int:
            skips = math.floor(math.log2(self.scale / limit) / bits_per_skip) + 1
            return round(skips * bits_per_skip * steps_per_bit)

        return ScaleForecast(
            steps_to_minimum=steps_until(min_scale),
            steps_to_destruction=steps_until(_LAST_SCALE),
            skip_rate=self.window_skips / self.window_attempts,
        )
