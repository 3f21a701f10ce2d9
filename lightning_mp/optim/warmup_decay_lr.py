"""A learning-rate schedule in one piece: warm-up over steps, then decay over epochs, under a cap."""

from __future__ import annotations

import warnings

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from lightning_mp.errors import ConfigurationError, LightningMPWarning
from lightning_mp.optim.linear_warmup import LinearWarmup

HIGHEST_PEAK = 5e-4
"""Learning rate above which AdamW in float16 was seen to end in NaN."""


class WarmupDecayLR(LRScheduler):
    """Linear warm-up over the first steps, then the base learning rate times a factor every few epochs, under a cap.

    The learning rate of step `s` in epoch `e` is `min(base_lr * decay_factor ** (e // decay_every_n_epochs), max_lr)`,
    reached from `start_lr` in a straight line. Call `step` after each optimizer step. It counts its own calls: for a
    Trainer that steps a schedule also when a step was skipped, or beside another schedule, use the callback
    `LearningRateWarmup`. `RankingModule` steps it each batch and fills in `steps_per_epoch`.

    Args:
        optimizer: Its parameter groups have the base learning rates.
        warmup_steps: Steps of the warm-up.
        start_lr: Learning rate of the first step.
        decay_factor: Factor every `decay_every_n_epochs` epochs, in (0, 1]; 1 for no decay.
        decay_every_n_epochs: Epochs between two decays.
        steps_per_epoch: Optimizer steps of an epoch; None for no decay until the attribute is set.
        max_lr: Learning rate that no step exceeds; None for no cap.
        last_epoch: Steps taken before, less one, as in every schedule of torch.

    Raises:
        ConfigurationError: A number is outside of its range.

    Warns:
        LightningMPWarning: A group of an optimizer of Adam's kind peaks above 5e-4.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=5e-5)
        >>> schedule = WarmupDecayLR(optimizer, warmup_steps=10, steps_per_epoch=10)
        >>> rates = []
        >>> for _ in range(70):
        ...     rates += schedule.get_last_lr()
        ...     optimizer.step()
        ...     schedule.step()
        >>> [f"{rates[step]:.3g}" for step in (0, 5, 10, 30, 60)]
        ['1e-06', '2.55e-05', '5e-05', '4.5e-05', '4.05e-05']
    """

    interval = "step"

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        warmup_steps: int = 1000,
        start_lr: float = 1e-6,
        decay_factor: float = 0.9,
        decay_every_n_epochs: int = 3,
        steps_per_epoch: int | None = None,
        max_lr: float | None = 2e-4,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < decay_factor <= 1:
            raise ConfigurationError(f"`decay_factor` must lie in (0, 1], got {decay_factor!r}", "use 0.9")
        for name, value in (("decay_every_n_epochs", decay_every_n_epochs), ("steps_per_epoch", steps_per_epoch)):
            if value is not None and value < 1:
                raise ConfigurationError(f"`{name}` must be at least 1, got {value!r}", "count whole epochs and steps")
        if max_lr is not None and not max_lr > 0:
            raise ConfigurationError(f"`max_lr` must be positive, got {max_lr!r}", "use 2e-4")
        LinearWarmup(warmup_steps=warmup_steps, start_lr=start_lr)  # names what is out of range
        self.warmup_steps = warmup_steps
        self.start_lr = start_lr
        self.decay_factor = decay_factor
        self.decay_every_n_epochs = decay_every_n_epochs
        self.steps_per_epoch = steps_per_epoch
        self.max_lr = max_lr
        super().__init__(optimizer, last_epoch)
        self._warn_of_high_peaks()

    @override
    def get_lr(self) -> list[float | Tensor]:
        """Learning rates of the step to come, by parameter group."""
        epoch = 0 if self.steps_per_epoch is None else self.last_epoch // self.steps_per_epoch
        decay = self.decay_factor ** (epoch // self.decay_every_n_epochs)
        warmup = LinearWarmup(warmup_steps=self.warmup_steps, start_lr=self.start_lr)
        limit = float("inf") if self.max_lr is None else self.max_lr
        return [warmup.lr(min(float(lr) * decay, limit), self.last_epoch) for lr in self.base_lrs]

    def _warn_of_high_peaks(self) -> None:
        limit = float("inf") if self.max_lr is None else self.max_lr
        peak = min(max(float(lr) for lr in self.base_lrs), limit)
        if peak > HIGHEST_PEAK and "adam" in type(self.optimizer).__name__.lower():
            warnings.warn(
                f"the learning rate peaks at {peak:g}, above {HIGHEST_PEAK:g}: there AdamW in float16 is known to end "
                "in NaN\n\nhint: lower the optimizer's `lr`, or leave `max_lr` at 2e-4",
                category=LightningMPWarning,
                stacklevel=3,
            )
