"""Run chosen layers in float32 inside a module that is trained in mixed precision."""

from __future__ import annotations

import copyreg
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lightning_mp.errors import ConfigurationError, LightningMPWarning

_ORIGINAL = "_class_before_float32"


class Float32Layers:
    """Layers that run in float32, forward and backward, until they are released.

    A layer's class is replaced by a subclass of it that runs `forward` with autocast off. Names and shapes in
    `state_dict`, `isinstance`, tied weights and hooks stay as they were. A copy and a pickle are of the layer's own
    class. A compiled module breaks its graph at each such layer: inside one graph torch runs the backward pass of a
    region with autocast off in float16 all the same.

    Args:
        layers: Modules by the name they are reported under.
        optional: Nobody asked for them by name: one whose `forward` fails in float32, as it mixes formats by hand, runs
            as it did before from there on, with a warning.

    Attributes:
        layers: Those that run in float32.
        given_up: Names of those that could not.

    Raises:
        ConfigurationError: A layer is a TorchScript module, or its `forward` was replaced on the instance.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> kept = Float32Layers({"1": net[1]})
        >>> with torch.autocast("cpu", dtype=torch.float16):
        ...     net[0](torch.ones(1, 2)).dtype, net(torch.ones(1, 2)).dtype
        (torch.float16, torch.float32)
        >>> kept.release()
        >>> type(net[1]) is nn.Linear
        True

    Source:
        The compiled backward pass: https://github.com/pytorch/pytorch/issues/179804
    """

    def __init__(self, layers: Mapping[str, nn.Module], *, optional: bool = False) -> None:
        self.layers: dict[str, nn.Module] = {}
        self.given_up: set[str] = set()
        for name, layer in layers.items():
            if isinstance(layer, torch.jit.ScriptModule):
                raise ConfigurationError(
                    f"`{name}` is a TorchScript module and cannot be kept in float32",
                    "leave it out, or don't script it",
                )
            if "forward" in vars(layer):
                raise ConfigurationError(
                    f"`{name}` has a `forward` of its own, set on the instance, and cannot be kept in float32",
                    "name the module inside it, or put the `forward` in a class",
                )
        for name, layer in layers.items():
            if not hasattr(type(layer), _ORIGINAL):
                layer.__class__ = _float32_class(type(layer), partial(self._give_up, name) if optional else None)
                self.layers[name] = layer

    def release(self) -> None:
        """Give every layer its own class back."""
        for layer in self.layers.values():
            layer.__class__ = getattr(type(layer), _ORIGINAL)
        self.layers.clear()

    def _give_up(self, name: str, error: RuntimeError) -> None:
        self.given_up.add(name)
        if layer := self.layers.pop(name, None):
            layer.__class__ = getattr(type(layer), _ORIGINAL)
        text = f"`{name}` cannot run in float32 and stays as it was: {str(error).splitlines()[0]}"
        warnings.warn(
            f"{text}\n\nhint: let its `forward` take the format of its inputs", LightningMPWarning, stacklevel=2
        )


def _float32_class(original: type[nn.Module], give_up: Callable[[RuntimeError], None] | None) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device_type = _device_type(self, (args, kwargs))
        if torch.is_autocast_enabled(device_type):
            return in_float32(self, device_type, args, kwargs)
        return original.forward(self, *args, **kwargs)

    @_not_compiled
    def in_float32(self: nn.Module, device_type: str, args: Any, kwargs: Any) -> Any:
        try:
            with torch.autocast(device_type, enabled=False):
                long_args, long_kwargs = tree_map(_to_float32, (args, kwargs))
                return original.forward(self, *long_args, **long_kwargs)
        except RuntimeError as error:
            if give_up is None or isinstance(error, torch.OutOfMemoryError):
                raise
            failure = error
        result = original.forward(self, *args, **kwargs)  # an error that has nothing to do with float32 is raised again
        give_up(failure)
        return result

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:  # noqa: N807 - becomes a method
        reduced = original.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        constructor, arguments, *rest = reduced
        if constructor is type(self):
            return (original, arguments, *rest)
        if arguments == (type(self),):  # what an object gives that says nothing of its own; pickle checks that class
            return (copyreg._reconstructor, (original, object, None), *rest)  # type: ignore[attr-defined]  # noqa: SLF001 - what pickle itself calls, not in the stubs
        return (constructor, tuple(original if item is type(self) else item for item in arguments), *rest)

    body = {
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__reduce_ex__": __reduce_ex__,
        _ORIGINAL: original,
        "forward": forward,
    }
    return type(original.__name__, (original,), body)


def _not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    reason = "a layer kept in float32: one compiled graph would run its backward pass in float16"
    return cast(Callable[..., Any], torch.compiler.disable(function, reason=reason))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _device_type(module: nn.Module, inputs: Any) -> str:
    for parameter in module.parameters():
        return parameter.device.type
    found: list[str] = []
    tree_map(lambda leaf: found.append(leaf.device.type) if isinstance(leaf, Tensor) else None, inputs)
    return found[0] if found else "cpu"


def _to_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype in (torch.float16, torch.bfloat16) else leaf
