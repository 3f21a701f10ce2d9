"""Names of the settings that a class, a factory or a record takes: what a typo may have meant."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any


def settings_of(class_path: str, group: Sequence[str] = ()) -> list[str]:
    """Names of the settings of an object that a recipe builds.

    Args:
        class_path: Dotted path of a class or of a function that returns one's object.
        group: Keys down from there into records (dataclasses) that it takes.

    Returns:
        Empty where the class cannot be imported or a key leads to no record.

    Example:
        >>> "max_epochs" in settings_of("lightning.pytorch.Trainer")
        True
    """
    target = _import(class_path)
    for name in group:
        target = _record(target, name)
    return _names(target) if callable(target) else []


def classes_beside(class_path: str) -> list[str]:
    """Names that the module of a class path has, for a class name that it has not."""
    module = _import(class_path.rpartition(".")[0])
    return [name for name in dir(module) if name[:1].isalpha()] if module is not None else []


def _import(path: str) -> Any:
    parts = [part for part in path.split(".") if part]
    for split in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:split]))
        except ImportError:
            continue
        for name in parts[split:]:
            found = getattr(found, name, None)
        return found
    return None


def _names(target: Callable[..., Any]) -> list[str]:
    """Parameter names, those of the parent classes too where a constructor passes `**kwargs` on."""
    names: list[str] = []
    owners = inspect.getmro(target) if inspect.isclass(target) else (target,)
    for owner in owners:
        call = vars(owner).get("__init__") if inspect.isclass(owner) else owner
        if call is None or owner is object:
            continue
        parameters = list(inspect.signature(call).parameters.values())
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names += [p.name for p in parameters if p.kind in named and p.name not in ("self", *names)]
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            break
    return names


def _record(target: Any, name: str) -> Any:
    """The dataclass that the parameter or field `name` of `target` takes."""
    if target is None:
        return None
    owner = target.__init__ if inspect.isclass(target) and not is_dataclass(target) else target
    try:
        hint = typing.get_type_hints(owner).get(name)
    except (NameError, TypeError):
        return None
    for candidate in (hint, *typing.get_args(hint)):
        if is_dataclass(candidate) and fields(candidate):
            return candidate
    return None
