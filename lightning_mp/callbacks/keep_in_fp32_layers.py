"""The layers that are in float32 in a run, and whether their gradients are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from glob import escape

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_mp.callbacks.keep_in_fp32_verification import Float32Verification
from lightning_mp.errors import LightningMPWarning
from lightning_mp.precision.float32_layers import Float32Layers
from lightning_mp.precision.hookable_modules import scripted_modules
from lightning_mp.precision.layers_near_overflow import NearOverflow
from lightning_mp.precision.module_names import matching_modules, modules_by_name


class KeptLayers:
    """Layers of a module in float32 until they are released; more can be taken in.

    Args:
        module: The outermost module.
        patterns: Names of the layers, or patterns where the user named them.
        named: Whether the user did: TorchScript among them is warned of.
        dtype: What autocast computes in.
        verified: Where the verdicts on their gradients go, by layer; None to look at none.

    Attributes:
        names: The layers that are in float32.
        beyond: Layers that cannot be, though they come near float16's end or were found.
    """

    def __init__(
        self,
        module: pl.LightningModule,
        patterns: Sequence[str],
        *,
        named: bool,
        dtype: torch.dtype,
        verified: dict[str, bool] | None,
    ) -> None:
        found = matching_modules(module, patterns if named else [escape(name) for name in patterns])
        layers = {name: layer for name, layer in found.items() if not isinstance(layer, torch.jit.ScriptModule)}
        wanted = [*found] if named else scripted_modules(module, at_least_dims=2)
        if left := ", ".join(f"`{name}`" for name in wanted if name not in layers):
            text = f"`KeepInFP32` cannot keep TorchScript in float32: {left}\n\nhint: script it after the training"
            rank_zero_warn(text, category=LightningMPWarning)
        self.names = tuple(layers)
        self.beyond: set[str] = set()
        self._dtype = dtype
        self._verified = verified
        self._warned: set[str] = set()
        self._checks: list[Float32Verification] = []
        self._autocast_off: torch.autocast | None = None
        self._float32 = [Float32Layers(layers, optional=not named)]
        if verified is not None:
            self._checks.append(Float32Verification(layers, dtype, verified))

    @property
    def settled(self) -> frozenset[str]:
        """Layers that need no more measuring: in float32, or beyond it."""
        return frozenset((*self.names, *self.beyond))

    def take_in(self, module: pl.LightningModule, near: NearOverflow) -> dict[str, float]:
        """Keep layers that come near float16's end too, and say so.

        Args:
            module: The outermost module.
            near: What was measured.

        Returns:
            The largest magnitude seen in those that are new, by name.
        """
        new, modules = {}, modules_by_name(module)
        for name, layer in modules.items():
            if name not in near.layers or any(name.startswith(f"{outer}.") for outer in near.layers):
                continue
            if isinstance(layer, torch.jit.ScriptModule) or "forward" in vars(layer):
                self.beyond.add(name)
                self._warn(
                    name,
                    f"`{name}` {_reach(near.layers[name])} in float16, and cannot be kept in float32: its `forward` is "
                    "TorchScript, or was set on the instance\n\nhint: give it a class of its own",
                )
            elif not any(f"{name}.".startswith(f"{outer}.") for outer in (*self.names, *self.beyond)):
                new[name] = layer
        for name in near.outside:
            self._warn(
                name,
                f"what goes into `{name}` {_reach(near.outside[name])} in float16, by arithmetic in the outermost "
                "module's own `forward`, which `KeepInFP32` cannot keep in float32\n\n"
                "hint: move it into an `nn.Module` of its own, or turn autocast off around it",
            )
        if new:
            self._float32.append(Float32Layers(new, optional=True))
            outermost = [name for name in self.names if not any(name.startswith(f"{outer}.") for outer in new)]
            self.names = tuple(name for name in modules if name in {*outermost, *new})  # as in a run that is resumed
            if self._verified is not None:
                self._checks.append(Float32Verification(new, self._dtype, self._verified))
            told = ", ".join(f"`{name}` ({_reach(near.layers[name])})" for name in new)
            rank_zero_info(f"`KeepInFP32` keeps in float32 from here on too, for float16 ends at 65504: {told}")
        return {name: near.layers[name] for name in new}

    def before_backward(self, loss: Tensor) -> None:
        """Call before each backward pass, with its loss."""
        if torch.is_autocast_enabled(loss.device.type):
            # Manual optimization calls backward inside autocast: it would run in float16 whatever the forward did.
            self._autocast_off = torch.autocast(loss.device.type, enabled=False)
            self._autocast_off.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for layers in self._float32:
            if layers.given_up:
                self.beyond |= layers.given_up
                self.names = tuple(name for name in self.names if name not in layers.given_up)
                for check in self._checks:
                    check.leave_out(layers.given_up)
                layers.given_up.clear()
        for check in self._checks:
            check.before_backward(loss)

    def after_backward(self) -> None:
        """Call after each backward pass."""
        self._end_backward()
        for check in self._checks:
            check.after_backward()

    def release(self) -> None:
        """Give every layer its own class back, and take every hook off."""
        self._end_backward()
        for check in self._checks:
            check.release()
        for layers in reversed(self._float32):
            layers.release()

    def _end_backward(self) -> None:
        if self._autocast_off is not None:
            self._autocast_off.__exit__(None, None, None)
            self._autocast_off = None

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            rank_zero_warn(text, category=LightningMPWarning)


def _reach(size: float) -> str:
    return "overflowed" if math.isinf(size) else f"reached |x| = {size:.6g}"
