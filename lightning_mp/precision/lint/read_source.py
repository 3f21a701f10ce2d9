"""Find the source of a module's own classes, and of the functions they call."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lightning_mp.precision.lint.finding import LintFinding
from lightning_mp.precision.lint.source_rules import Source, source_findings
from lightning_mp.precision.lint.syntax import parents_of

_NOT_THE_USERS = ("torch", "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "builtins", "abc",
                  "typing", "collections", "functools", "numpy")  # fmt: skip


def findings_in_source(kinds: Iterable[type], *, half_range: bool = True) -> list[LintFinding]:
    """What float16 breaks in the source of classes, their bases, and the functions of their package that they call.

    Classes of torch and Lightning are passed over, and so is what has no source.

    Args:
        kinds: The classes.
        half_range: Whether the short format has float16's range; bfloat16 has float32's.

    Returns:
        One finding a line and code, in the order read.
    """
    found: list[LintFinding] = []
    seen: set[Any] = set()
    waiting: list[Any] = [base for kind in kinds for base in getattr(kind, "__mro__", (kind,))]
    while waiting:
        owner = waiting.pop(0)
        demo = ".demos." in getattr(owner, "__module__", "")  # Lightning's examples are code like a user's
        if owner in seen or (_root(owner) in _NOT_THE_USERS and not demo):
            continue
        seen.add(owner)
        read = _read(owner)
        if read is None:
            continue
        tree, first_line, file = read
        names = _namespace(owner)
        source = Source(tree, parents_of(tree), names, half_range)
        for line, (code, severity, problem) in source_findings(source):
            place = f"{_shown(file)}:{first_line + line - 1}"
            found.append(LintFinding(code=code, severity=severity, place=place, problem=problem))
        waiting += _called_functions(tree, owner, names)
    return list({(one.code, one.place): one for one in found}.values())


def has_source(kind: type) -> bool:
    """Whether the source of a class itself can be read: one made by `exec` or at a prompt has none."""
    return _read(kind) is not None


def _root(owner: Any) -> str:
    return str(getattr(owner, "__module__", "") or "").partition(".")[0]


def _read(owner: Any) -> tuple[ast.AST, int, str] | None:
    try:
        lines, first = inspect.getsourcelines(owner)
        file = inspect.getsourcefile(owner) or "<unknown>"
        return ast.parse(textwrap.dedent("".join(lines))), max(first, 1), file
    except Exception:  # whatever a class made without source, or an odd one, raises
        return None


def _namespace(owner: Any) -> dict[str, Any]:
    home = sys.modules.get(getattr(owner, "__module__", ""))
    return {} if home is None else dict(vars(home))


def _called_functions(tree: ast.AST, owner: Any, names: dict[str, Any]) -> Iterator[Any]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            target = names.get(node.func.id)
            if inspect.isfunction(target) and _root(target) == _root(owner):
                yield target


def _shown(file: str) -> str:
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file
