"""Remember the inputs of a module's parts, once for all who want to run them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.forward_trace import is_compiled
from lightning_mp.precision.hookable_modules import scripted_modules


class PartCall(NamedTuple):
    """One call of a part, and how autocast stood."""

    name: str
    module: nn.Module
    args: Any
    kwargs: Any
    device_type: str
    autocast: bool
    dtype: torch.dtype


class _Remember:
    """The hook of one part. A copy of the module, made in the middle of a run, gets one that does nothing."""

    def __init__(self, inputs: PartInputs | None = None, name: str = "") -> None:
        self.inputs = inputs
        self.name = name

    def __reduce__(self) -> tuple[type[_Remember], tuple[()]]:
        return _Remember, ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = self.inputs
        if inputs is not None and inputs.listeners and not torch.compiler.is_compiling():
            inputs.see(self.name, module, args, kwargs)


@dataclass(eq=False)
class PartInputs:
    """Hooks on a module's parts, shared by all who asked for them, and the calls they saw.

    A lookup in a plain embedding table gives rows of it, and these are finite where the table is: it has no hook.

    Args:
        module: The module they stand on.
        users: Who asked for them; the last one to leave takes the hooks off.
        listeners: Those of them who want the calls that happen now.
        calls: What was seen, the oldest first.
    """

    module: nn.Module
    users: set[object] = field(default_factory=set)
    listeners: set[object] = field(default_factory=set)
    calls: list[PartCall] = field(default_factory=list)
    handles: dict[str, RemovableHandle] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    unfed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, module: nn.Module) -> PartInputs:
        """Those that stand on a module, or new ones.

        Args:
            module: The outermost module.
        """
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        parts = [] if several or is_compiled(module) else list(_parts(module, ""))
        for _, part in parts:
            for hook in part._forward_pre_hooks.values():  # noqa: SLF001 - nn.Module tells its hooks in no other way
                inputs = getattr(hook, "inputs", None)
                if isinstance(inputs, PartInputs) and inputs.module is module:
                    return inputs
        made = cls(module)
        for name, part in parts:
            made.handles[name] = part.register_forward_pre_hook(_Remember(made, name), with_kwargs=True)
        return made

    def drop_unfed(self) -> None:
        """Take the hooks off that only read activations; there may be hundreds of them."""
        if self.unfed:
            for name in self.unfed - self.fed:
                self.handles.pop(name).remove()
            self.unfed.clear()

    def leave(self, user: object) -> None:
        """Forget one who asked for the hooks.

        Args:
            user: As in `users`.
        """
        self.users.discard(user)
        self.listeners.discard(user)
        if not self.users:
            for handle in self.handles.values():
                handle.remove()
            self.handles.clear()

    def see(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Called by the hooks: keep the inputs of a part if all of them come straight from the batch."""
        leaves = args
        if kwargs or [1 for value in args if type(value) is not Tensor]:  # seldom; the rest is plain for its speed
            leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not leaves or not torch.is_grad_enabled():
            return
        if [1 for leaf in leaves if leaf.grad_fn is not None]:
            self.unfed.add(name)
            return
        self.fed.add(name)
        device_type = "cpu" if leaves[0].is_cpu else leaves[0].device.type
        autocast, dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        self.calls.append(PartCall(name, module, args, kwargs, device_type, autocast, dtype))


def _parts(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        scripted = scripted_modules(child)
        if isinstance(child, nn.ModuleList | nn.ModuleDict) or (scripted and "" not in scripted):
            yield from _parts(child, f"{prefix}{name}.")
        elif not scripted and not _only_looks_up(child):
            yield prefix + name, child


def _only_looks_up(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.Embedding)
        and type(module).forward is nn.Embedding.forward
        and "forward" not in vars(module)
    )
