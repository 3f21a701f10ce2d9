"""Find modules by name or pattern."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from lightning_mp.errors import ConfigurationError


def modules_by_name(module: nn.Module) -> dict[str, nn.Module]:
    """All modules inside a module, by name; what `torch.compile` puts in front of a name is left out.

    Args:
        module: The outermost module, which is not among them.

    Returns:
        Modules in the order of `named_modules`; of a compiled one the module that was compiled.

    Example:
        >>> import torch
        >>> list(modules_by_name(nn.Sequential(torch.compile(nn.Sequential(nn.Linear(1, 1)), backend="eager"))))
        ['0', '0.0']
    """
    named = {}
    for name, inner in module.named_modules():
        if name and not hasattr(inner, "_orig_mod"):  # the wrapper of torch.compile; the module inside counts
            named[name.replace("_orig_mod.", "").removesuffix("._orig_mod").removeprefix("_orig_mod.")] = inner
    return named


def matching_modules(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Modules inside a module whose name matches a pattern; of nested ones the outermost.

    Args:
        module: The outermost module, which is never among those found.
        patterns: Names as `named_modules` gives them, or patterns with `*`, `?` and `[...]`; what `torch.compile`
            puts in front of a name is left out.

    Returns:
        Modules by name, in the order of `named_modules`.

    Raises:
        ConfigurationError: A pattern matches no module.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
        >>> list(matching_modules(net, ["0", "[2-9]"]))
        ['0', '2']
    """
    named = modules_by_name(module)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            near = get_close_matches(pattern, named, n=1, cutoff=0.0)
            raise ConfigurationError(
                f"`modules`: no module of `{type(module).__name__}` matches `{pattern}`",
                f"did you mean `{near[0]}`?" if near else "leave `modules` out",
            )
    found: dict[str, nn.Module] = {}
    for name, inner in named.items():
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if not inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            found[name] = inner
    return found
