"""Read numbers and surroundings out of a syntax tree."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

_FLOAT32 = {"float", "double"}


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The parent of every node but the outermost."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def ancestors(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """The nodes around a node, the nearest first."""
    while (parent := parents.get(node)) is not None:
        yield parent
        node = parent


def number(node: ast.AST | None, names: Mapping[str, Any]) -> float | None:
    """The number that an expression of constants stands for.

    Args:
        node: The expression; None gives None.
        names: Values of the names that it may use.

    Example:
        >>> number(ast.parse("-2**32 + 1", mode="eval").body, {})
        -4294967295.0
    """
    value: Any = None
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = names.get(node.id)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand, names)
        value = None if inner is None else -inner
    elif isinstance(node, ast.BinOp):
        left, right = number(node.left, names), number(node.right, names)
        if left is not None and right is not None:
            with suppress(OverflowError, ZeroDivisionError):
                value = _computed(node.op, left, right)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def called(node: ast.AST) -> str:
    """Last part of what a call calls, `masked_fill` of `x.masked_fill(...)`; empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def argument(call: ast.Call, position: int, *names: str) -> ast.AST | None:
    """An argument of a call by its names, or by its position."""
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    return call.args[position] if 0 <= position < len(call.args) else None


def in_float32(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether an expression is cast to float32, or stands where autocast is off."""
    if any(_casts(inner) for inner in ast.walk(node)):
        return True
    for outer in ancestors(node, parents):
        if isinstance(outer, ast.With | ast.AsyncWith) and any(
            _autocast_off(item.context_expr) for item in outer.items
        ):
            return True
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return any("custom_fwd" in ast.dump(decorator) for decorator in outer.decorator_list)
    return False


def divided(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether an expression is divided or made a mean of: in its statement, or its function divides what it names."""
    for outer in ancestors(node, parents):
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Div):
            return True
        if called(outer) in ("div", "mean", "div_", "true_divide"):
            return True
        if isinstance(outer, ast.Assign):
            return _later_divided({ast.unparse(target) for target in outer.targets}, outer, parents)
        if isinstance(outer, ast.stmt):
            return False
    return False


def _later_divided(names: set[str], node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    function = next((one for one in ancestors(node, parents) if isinstance(one, ast.FunctionDef)), None)
    if function is None:
        return False
    for inner in ast.walk(function):
        above: ast.AST | None = None
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div):
            above = inner.left
        elif isinstance(inner, ast.AugAssign) and isinstance(inner.op, ast.Div):
            above = inner.target
        if above is not None and any(
            isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one) in names for one in ast.walk(above)
        ):
            return True
    return False


def _computed(op: ast.operator, left: float, right: float) -> float | None:
    operations: dict[type[ast.operator], Callable[[float, float], Any]] = {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
        ast.Pow: operator.pow,
    }  # fmt: skip
    operation = operations.get(type(op))
    value = None if operation is None else operation(left, right)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _casts(node: ast.AST) -> bool:
    if called(node) in _FLOAT32 and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return True
    if called(node) in ("to", "type") and isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return any(isinstance(one, ast.Attribute) and one.attr in ("float32", "float64", *_FLOAT32) for one in given)
    return False


def _autocast_off(node: ast.AST) -> bool:
    if called(node) != "autocast" or not isinstance(node, ast.Call):
        return False
    return any(
        keyword.arg == "enabled" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in node.keywords
    )
