"""Tell modules that take hooks from those that refuse them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def hookable_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A module and all inside it that take forward hooks: those that are not TorchScript, which refuses them.

    Args:
        module: The outermost module.

    Yields:
        Pairs of name and module, in the order of `named_modules`.

    Example:
        >>> [name for name, _ in hookable_modules(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))]
        ['', '0', '1']
    """
    for name, inner in module.named_modules():
        if not isinstance(inner, torch.jit.ScriptModule):
            yield name, inner


def layers_that_run(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What counts as a layer of a module: all inside it that own parameters, or have no children, and take hooks.

    Args:
        module: The outermost module, which is not among them.

    Yields:
        Pairs of name and module, in the order of `named_modules`.

    Example:
        >>> [name for name, _ in layers_that_run(nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.ReLU()))]
        ['0.0', '1']
    """
    for name, inner in hookable_modules(module):
        if name and (next(inner.children(), None) is None or next(inner.parameters(recurse=False), None) is not None):
            yield name, inner


def scripted_modules(module: nn.Module, *, at_least_dims: int = 0) -> dict[str, nn.Module]:
    """Modules that are TorchScript, scripted or traced; of nested ones the outermost.

    Args:
        module: The outermost module.
        at_least_dims: Only those with a parameter of as many dimensions; 0 for all.

    Returns:
        Modules by name, in the order of `named_modules`.

    Example:
        >>> scripted_modules(nn.Sequential(nn.Linear(1, 1)))
        {}
    """
    found: dict[str, nn.Module] = {}
    for name, inner in module.named_modules():
        if isinstance(inner, torch.jit.ScriptModule) and not any(
            f".{name}".startswith(f".{outer}.".replace("..", ".")) for outer in found
        ):
            found[name] = inner
    return {
        name: inner
        for name, inner in found.items()
        if not at_least_dims or any(parameter.dim() >= at_least_dims for parameter in inner.parameters())
    }
