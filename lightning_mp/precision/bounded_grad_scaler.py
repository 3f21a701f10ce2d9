"""A gradient scaler whose loss scale cannot die."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.amp import GradScaler

from lightning_mp.errors import ConfigurationError


class BoundedGradScaler(GradScaler):
    """`torch.amp.GradScaler` with a floor and a ceiling for the loss scale.

    The stock scaler halves its scale at every overflow without end: at zero, and from 2**-128 on, the next finite
    batch writes NaN into the weights. With its growth interval of 2000 one bad batch in 1000 is enough to get there.
    This one stays within its bounds and by default tries to grow ten times as often. Its `state_dict` is that of the
    stock scaler, and either loads the other's; scale and progress come from the state, the factors and the interval
    stay as they were asked for here.

    Args:
        device: Device type, `"cuda"` or `"cpu"`.
        init_scale: Loss scale to begin with, within the bounds.
        growth_factor: Factor of a growth, above 1.
        backoff_factor: Factor of a skipped step, in (0, 1).
        growth_interval: Steps in a row without overflow before a growth.
        retry_interval: The same after an overflow, where that is more: a scale that grows every 10 steps would be back
            soon where gradients overflow, and a step is lost each time. None for `growth_interval`.
        min_scale: Floor, positive.
        max_scale: Ceiling.
        enabled: False makes every method do nothing.

    Raises:
        ConfigurationError: The bounds are not positive, finite and in order, or `init_scale` is outside of them.

    Example:
        >>> import torch
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer, scaler = torch.optim.SGD([weight], 0.1), BoundedGradScaler("cpu", init_scale=4.0)
        >>> for _ in range(5):
        ...     scaler.scale(weight * float("inf")).backward()
        ...     _ = scaler.step(optimizer)
        ...     scaler.update()
        >>> scaler.get_scale()
        1.0

    Source:
        The stock scaler's end: https://github.com/pytorch/pytorch/issues/99640
    """

    def __init__(
        self,
        device: str = "cuda",
        *,
        init_scale: float = 1024.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 200,
        retry_interval: int | None = None,
        min_scale: float = 1.0,
        max_scale: float = 2.0**24,
        enabled: bool = True,
    ) -> None:
        if not 0 < min_scale <= max_scale < math.inf:
            problem = f"`min_scale` and `max_scale` must be positive and in order, got {min_scale!r} and {max_scale!r}"
            raise ConfigurationError(problem, "use 1.0 and 2.0**24")
        if not min_scale <= init_scale <= max_scale:
            raise ConfigurationError(
                f"`init_scale` must lie in [{min_scale:g}, {max_scale:g}], got {init_scale!r}", "use 1024.0"
            )
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self.retry_interval = growth_interval if retry_interval is None else max(retry_interval, growth_interval)
        self.min_scale = min_scale
        self.max_scale = max_scale

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Move the scale as the stock scaler does, then back within the bounds; reads nothing from the device.

        Args:
            new_scale: A scale to set instead.
        """
        if not self.is_enabled():
            return
        waits = self.retry_interval - self._growth_interval if new_scale is None else 0
        before = self._scale.clone() if waits > 0 and self._scale is not None else None
        super().update(new_scale)
        if before is not None and self._scale is not None and self._growth_tracker is not None:
            # Below zero it counts towards zero first; a checkpoint has it, and the stock scaler counts on from it.
            self._growth_tracker.sub_((self._scale < before).to(self._growth_tracker.dtype) * waits)
        if self._scale is not None:
            self._scale.clamp_(self.min_scale, self.max_scale)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load scale and progress, also a stock scaler's; a scale outside the bounds is moved to the nearer one.

        Args:
            state_dict: What `state_dict` of this scaler or of a stock one gave.
        """
        if not self.is_enabled():
            return
        own = (self._growth_factor, self._backoff_factor, self._growth_interval)
        scale = state_dict.get("scale", self.min_scale)
        within = min(max(scale, self.min_scale), self.max_scale)  # a NaN stays a NaN, and is none of these
        super().load_state_dict({**state_dict, "scale": within if math.isfinite(scale) else self.min_scale})
        self._growth_factor, self._backoff_factor, self._growth_interval = own
