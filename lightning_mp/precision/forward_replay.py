"""Run the forward pass of a batch once more, on a shadow of the module, to find where it overflowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.forward_trace import ForwardTrace, is_compiled, non_finite_outputs
from lightning_mp.precision.hookable_modules import hookable_modules, scripted_modules

Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class _Call:
    name: str
    module: nn.Module
    args: Any
    kwargs: Any
    device_type: str
    autocast: bool
    dtype: torch.dtype


class _Remember:
    """The hook of one part. A copy of the module, made in the middle of a run, gets one that does nothing."""

    def __init__(self, replay: ForwardReplay | None = None, name: str = "") -> None:
        self.replay = replay
        self.name = name

    def __reduce__(self) -> tuple[type[_Remember], tuple[()]]:
        return _Remember, ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.replay is not None and self.replay.listening and not torch.compiler.is_compiling():
            self.replay.see(self.name, module, args, kwargs)


class ForwardReplay:
    """Hooks that remember the inputs of a module's parts, as far as they come straight from the batch.

    Inputs that are activations are not kept: they would stay in memory through the backward pass. So a module that
    hands the batch to one network is replayed whole, a module with its layers side by side up to the first of them.
    Compiled modules, TorchScript, and runs of several processes, whose layers may wait for each other, are not
    replayed; of a part that holds TorchScript, what stands beside it is.

    Example:
        >>> net = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)))
        >>> replay = ForwardReplay()
        >>> replay.attach(net)
        >>> _ = net(torch.tensor([[float("inf")]]))
        >>> replay.detach()
        >>> replay.non_finite_layers()
        ('0.0', '0.1')
    """

    def __init__(self) -> None:
        self.listening = False
        self._handles: dict[str, RemovableHandle] = {}
        self._calls: list[_Call] = []
        self._module: nn.Module | None = None
        self._fed: set[str] = set()

    def attach(self, module: nn.Module) -> None:
        """Put a hook on each part of a module, and listen.

        Args:
            module: The outermost module. Where its hooks are on already, only the listening begins.
        """
        if self._module is not module:
            self.detach()
            self._module, self._fed = module, set()
            several = torch.distributed.is_available() and torch.distributed.is_initialized()
            for name, part in [] if several or is_compiled(module) else _parts(module, ""):
                hook = part.register_forward_pre_hook(_Remember(self, name), with_kwargs=True)
                self._handles[name] = hook
        elif self._fed and len(self._handles) > len(self._fed):
            for name in self._handles.keys() - self._fed:  # they read activations; there may be hundreds of them
                self._handles.pop(name).remove()
        self.listening = True

    def pause(self) -> None:
        """Stop to listen; the hooks and the inputs stay."""
        self.listening = False

    def detach(self) -> None:
        """Take the hooks off; the inputs stay."""
        self.listening = False
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._module = None

    def forget(self) -> None:
        """Drop the inputs."""
        self._calls.clear()

    def non_finite_layers(self) -> tuple[str, ...]:
        """Run the remembered parts again and see whose output is not finite.

        Parameters are shared with the module, all else is a shadow: buffers, random state, hooks and attributes of
        the module stay as they are.

        Returns:
            Names of layers in the order they ran; empty if all was finite or a part refused to run again.
        """
        found: list[str] = []
        for call in self._calls:
            shadow, trace = _shadow_of(call), ForwardTrace()
            trace.attach(shadow)
            if _ran_again(call, shadow):
                found += [call.name + name.removeprefix("part") for name in non_finite_outputs(trace.outputs)]
        return tuple(dict.fromkeys(found))

    def first_output(self, find: Callable[[str, Tensor], Found | None]) -> Found | None:
        """Run the remembered parts again and look at the outputs of their layers, in the order they run.

        Args:
            find: Called with the layer's name and an output, until it finds something.

        Returns:
            What it found first.
        """
        found: list[Found] = []

        def look(name: str) -> Any:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                for leaf in tree_leaves(output):
                    if not found and isinstance(leaf, Tensor) and (value := find(name, leaf)) is not None:
                        found.append(value)

            return hook

        for call in self._calls:
            shadow = _shadow_of(call)
            for name, layer in hookable_modules(shadow):
                if name and (
                    next(layer.children(), None) is None or next(layer.parameters(recurse=False), None) is not None
                ):
                    layer.register_forward_hook(look(call.name + name.removeprefix("part")))
            if _ran_again(call, shadow) and found:
                return found[0]
        return None

    def see(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Called by the hooks: keep the inputs of a part if all of them come straight from the batch."""
        if not torch.is_grad_enabled():
            return
        flat = args if not kwargs and all(isinstance(value, Tensor) for value in args) else tree_leaves((args, kwargs))
        tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
        if tensors and all(tensor.grad_fn is None for tensor in tensors):
            self._fed.add(name)
            device_type = tensors[0].device.type
            autocast, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
            self._calls.append(_Call(name, module, args, kwargs, device_type, autocast, dtype))


def _shadow_of(call: _Call) -> nn.ModuleDict:
    shadow = nn.ModuleDict()
    shadow.add_module("part", _shadow(call.module, {}))
    return shadow


def _ran_again(call: _Call, shadow: nn.ModuleDict) -> bool:
    devices = range(torch.cuda.device_count()) if call.device_type == "cuda" else ()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices),
            torch.autocast(call.device_type, dtype=call.dtype, enabled=call.autocast),
        ):
            shadow["part"](*call.args, **call.kwargs)
    except Exception:  # a user's module: what cannot run twice stays without a name
        return False
    return True


def _parts(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        scripted = scripted_modules(child)
        if isinstance(child, nn.ModuleList | nn.ModuleDict) or (scripted and "" not in scripted):
            yield from _parts(child, f"{prefix}{name}.")
        elif not scripted:
            yield prefix + name, child


def _shadow(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """The same module with parameters shared, buffers copied and no hooks."""
    if id(module) in made:
        return made[id(module)]
    shadow = made[id(module)] = object.__new__(type(module))
    attributes = {name: type(value)() if "_hooks" in name else value for name, value in vars(module).items()}
    attributes["_parameters"] = dict(module._parameters)  # noqa: SLF001 - as nn.Module keeps them
    attributes["_buffers"] = {name: None if b is None else b.clone() for name, b in module._buffers.items()}  # noqa: SLF001
    attributes["_modules"] = {
        name: None if child is None else _shadow(child, made)
        for name, child in module._modules.items()  # noqa: SLF001
    }
    vars(shadow).update(attributes)
    return shadow
