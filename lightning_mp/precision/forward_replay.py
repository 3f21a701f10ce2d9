"""Run the forward pass of a batch once more, on a shadow of the module, to find where it overflowed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lightning_mp.precision.forward_trace import ForwardTrace, non_finite_outputs
from lightning_mp.precision.hookable_modules import layers_that_run
from lightning_mp.precision.part_inputs import PartCall, PartInputs

Found = TypeVar("Found")


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
        self._inputs: PartInputs | None = None
        self._calls: list[PartCall] = []
        self._first = 0  # of the calls that are all users', the first that is this one's

    def attach(self, module: nn.Module) -> None:
        """Put a hook on each part of a module, and listen. Hooks of another replay on the same module are shared.

        Args:
            module: The outermost module. Where its hooks are on already, only the listening begins.
        """
        inputs = self._inputs
        if inputs is None or inputs.module is not module:
            self.detach()
            self._inputs = inputs = PartInputs.of(module)
            inputs.users.add(self)
            self.forget()
        else:
            inputs.drop_unfed()
            self._first = min(self._first, len(inputs.calls))  # another may have dropped them since
        inputs.listeners.add(self)

    def pause(self) -> None:
        """Stop to listen; the hooks and the inputs stay."""
        inputs = self._inputs
        if inputs is not None and self in inputs.listeners:
            inputs.listeners.discard(self)
            self._calls = inputs.calls[self._first :]

    def detach(self) -> None:
        """Take the hooks off; the inputs stay."""
        self.pause()
        if self._inputs is not None:
            self._inputs.leave(self)
            self._inputs = None

    def forget(self) -> None:
        """Drop the inputs."""
        self._calls = []
        if self._inputs is not None:
            if self._inputs.listeners <= {self}:  # else the others still want theirs
                self._inputs.calls = []
            self._first = len(self._inputs.calls)

    def non_finite_layers(self) -> tuple[str, ...]:
        """Run the remembered parts again and see whose output is not finite.

        Parameters are shared with the module, all else is a shadow: buffers, random state, hooks and attributes of
        the module stay as they are.

        Returns:
            Names of layers in the order they ran; empty if all was finite or a part refused to run again.
        """
        found: list[str] = []
        for call in self._seen():
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

        for call in self._seen():
            shadow = _shadow_of(call)
            for name, layer in layers_that_run(shadow):
                layer.register_forward_hook(look(call.name + name.removeprefix("part")))
            if _ran_again(call, shadow) and found:
                return found[0]
        return None

    def _seen(self) -> list[PartCall]:
        inputs = self._inputs
        return inputs.calls[self._first :] if inputs is not None and self in inputs.listeners else self._calls


def _shadow_of(call: PartCall) -> nn.ModuleDict:
    shadow = nn.ModuleDict()
    shadow.add_module("part", _shadow(call.module, {}))
    return shadow


def _ran_again(call: PartCall, shadow: nn.ModuleDict) -> bool:
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


def _shadow(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """The same module with parameters shared, buffers copied and no hooks."""
    if id(module) in made:
        return made[id(module)]
    shadow = made[id(module)] = object.__new__(type(module))
    attributes = {name: type(value)() if "_hooks" in name else value for name, value in vars(module).items()}
    attributes["_parameters"] = dict(module._parameters)  # noqa: SLF001 - as nn.Module keeps them
    attributes["_buffers"] = {name: None if b is None else b.clone() for name, b in module._buffers.items()}  # noqa: SLF001 - as nn.Module keeps them
    attributes["_modules"] = {
        name: None if child is None else _shadow(child, made)
        for name, child in module._modules.items()  # noqa: SLF001 - as nn.Module keeps them
    }
    vars(shadow).update(attributes)
    if type(module).__setstate__ is not nn.Module.__setstate__ and next(module.parameters(), None) is None:
        # One that mends itself when it is copied: a metric of torchmetrics, whose `update` is bound to the original.
        with suppress(Exception):  # a user's module: what refuses is taken as it is
            shadow = made[id(module)] = copy.deepcopy(shadow)
    return shadow
