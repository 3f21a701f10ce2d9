"""Look whether the gradients of layers that are kept in float32 really were computed in float32."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_mp.errors import LightningMPWarning
from lightning_mp.precision.gradient_format import GradientFormat, cast_parameters

_BATCHES = 20


class Float32Verification:
    """Judges the gradients of some layers in up to 20 batches, and warns of those that came out of a shorter format.

    Args:
        layers: Modules by name.
        dtype: What autocast computes in.
        verified: The verdicts, by layer; added to.
    """

    def __init__(self, layers: Mapping[str, nn.Module], dtype: torch.dtype, verified: dict[str, bool]) -> None:
        self._layers = dict(layers)
        self._verified = verified
        self._check = GradientFormat(layers, dtype)
        self._batches_left = _BATCHES
        self._looked_outside = False

    def before_backward(self, loss: Tensor) -> None:
        """Call before each backward pass, with its loss."""
        if self._batches_left > 0:
            self._check.attach(self._verified)  # nothing, where all that is still to be judged is frozen
            if self._check.is_attached and not self._looked_outside:
                self._looked_outside = True
                self._report_uses_outside(loss)

    def after_backward(self) -> None:
        """Call after each backward pass."""
        if self._check.is_attached:
            self._check.detach()
            self._judge()

    def leave_out(self, names: Collection[str]) -> None:
        """Judge some layers no more."""
        for name in names:
            self._layers.pop(name, None)
            self._verified.pop(name, None)

    def release(self) -> None:
        """Take every hook off again."""
        self._check.detach()

    def _report_uses_outside(self, loss: Tensor) -> None:
        cast = cast_parameters(loss)
        for name, layer in self._layers.items():
            for parameter_name, parameter in layer.named_parameters():
                if id(parameter) in cast:
                    rank_zero_warn(
                        f"`{name}.{parameter_name}` is used outside of `{name}` too, and autocast shortens it there: "
                        f"only what runs inside `{name}` is in float32\n\n"
                        "hint: call a module there, such as an `nn.Linear` that shares the weight, and keep that too",
                        category=LightningMPWarning,
                    )

    def _judge(self) -> None:
        self._verified.update({name: right for name, right in self._check.verdict().items() if name in self._layers})
        self._batches_left = 0 if set(self._verified) >= self._check.names else self._batches_left - 1
        wrong = [name for name in self._layers if self._verified.get(name) is False]
        if wrong:
            self._batches_left = 0
            rank_zero_warn(
                f"the gradients of {', '.join(f'`{name}`' for name in wrong)} came out of a shorter format, though "
                "`KeepInFP32` keeps the layer in float32\n\n"
                "hint: leave what calls it uncompiled, or set `verify=False` if its inputs are whole numbers",
                category=LightningMPWarning,
            )
