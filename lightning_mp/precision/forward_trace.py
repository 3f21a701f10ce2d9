"""Remember which layers gave a finite output in a forward pass, without reading the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.hookable_modules import layers_that_run
from lightning_mp.precision.non_finite import finite_flags


class ForwardTrace:
    """Forward hooks on the layers of a module; each keeps one flag on the device: is the output finite?

    Costs one pass over every layer's output, so it is attached only after an overflow that has no name yet. It does
    nothing on a compiled module, where a new hook would mean compiling again. TorchScript layers take none.

    Attributes:
        outputs: Layers in the order they ran, and one flag each, a () bool on the device.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        >>> trace = ForwardTrace()
        >>> trace.attach(net)
        >>> _ = net(torch.tensor([[float("inf")]]))
        >>> trace.detach()
        >>> non_finite_outputs(trace.outputs)
        ('0', '1')
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self.outputs: list[tuple[str, Tensor]] = []

    @property
    def is_attached(self) -> bool:
        """Whether hooks stand on a module."""
        return bool(self._handles)

    def attach(self, module: nn.Module) -> None:
        """Put a hook on every layer that owns parameters or has no children.

        Args:
            module: The outermost module; attached or compiled already, nothing happens.
        """
        if self._handles or is_compiled(module):
            return
        for name, layer in layers_that_run(module):
            self._handles.append(layer.register_forward_hook(self._hook(name)))

    def detach(self) -> None:
        """Take the hooks off; the flags stay."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def forget(self) -> None:
        """Drop the flags."""
        self.outputs.clear()

    def _hook(self, name: str) -> Any:
        def remember(_module: nn.Module, _inputs: Any, output: Any) -> None:
            for leaf in tree_leaves(output):
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    self.outputs.append((name, finite_flags([leaf])[0]))

        return remember


def non_finite_outputs(outputs: list[tuple[str, Tensor]]) -> tuple[str, ...]:
    """Layers whose output was not finite, in the order they ran; one read from the device.

    Args:
        outputs: What a `ForwardTrace` kept.

    Returns:
        Names of modules, each once; the first is where it began.
    """
    if not outputs:
        return ()
    device = outputs[0][1].device
    flags = torch.stack([flag.to(device) for _, flag in outputs]).tolist()
    return tuple(dict.fromkeys(name for (name, _), finite in zip(outputs, flags, strict=True) if not finite))


def is_compiled(module: nn.Module) -> bool:
    """Whether a module, or one inside it, runs through `torch.compile`.

    Args:
        module: Any module, also a LightningModule that was compiled as a whole.

    Returns:
        True if so; a compiled plain function is not seen.

    Example:
        >>> is_compiled(nn.Linear(1, 1)), is_compiled(torch.compile(nn.Linear(1, 1), backend="eager"))
        (False, True)
    """
    if getattr(module, "_compiler_ctx", None) is not None:  # where Lightning keeps what it unwrapped
        return True
    return any(
        hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None) is not None
        for inner in module.modules()
    )
