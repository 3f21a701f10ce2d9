"""What float16 breaks, seen in the source of a class or a function."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.lint.finding import Severity
from lightning_mp.precision.lint.syntax import ancestors, argument, called, divided, in_float32, number

_FILLS = {"masked_fill": 1, "masked_fill_": 1, "fill_": 0, "fill_diagonal_": 0, "full": 1, "full_like": 1,
          "scatter_": 2, "scatter": 2, "index_fill_": 2, "index_fill": 2}  # fmt: skip
_LOSS_WORDS = ("loss", "entropy", "kl_div", "criterion")
_LOOK_UP = re.compile(r"embed|(^|[._])emb|emb_|table|lookup")
_MASK_WORDS = ("mask", "pad", "valid")


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed class or function, and the names it can see."""

    tree: ast.AST
    parents: Mapping[ast.AST, ast.AST]
    names: Mapping[str, Any]
    half_range: bool  # float16 rather than bfloat16, which has float32's range


Seen = tuple[str, Severity, str]


def source_findings(source: Source) -> Iterator[tuple[int, Seen]]:
    """Pairs of line and (code, severity, problem), each line and code once.

    Args:
        source: What was parsed.
    """
    told: set[tuple[int, str]] = set()
    for node in ast.walk(source.tree):
        for rule in _RULES:
            seen = rule(node, source)
            place = (getattr(node, "lineno", 0), seen[0] if seen else "")
            if seen is not None and place not in told:
                told.add(place)
                yield place[0], seen


def _cross_entropy(node: ast.AST, source: Source) -> Seen | None:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if name not in ("binary_cross_entropy", "BCELoss"):  # also where it is handed on, not called
        return None
    if name == "binary_cross_entropy" and _autocast_is_off(node, source):
        return None
    return "MP101", "error", f"`{name}` refuses to run under autocast on a GPU; a CPU runs it, and hides that"


def _mask(node: ast.AST, source: Source) -> Seen | None:
    value = _mask_value(node, source) if source.half_range else None
    if value is None or not FLOAT16.largest < abs(value) < math.inf or in_float32(node, source.parents):
        return None
    if any(called(outer) in ("float", "double") for outer in ancestors(node, source.parents)):
        return None
    return "MP102", "error", f"{value:g} is beyond float16's range of {FLOAT16.largest:g}: it raises, or becomes -inf"


def _mask_value(node: ast.AST, source: Source) -> float | None:
    if isinstance(node, ast.Call):
        name = called(node)
        if name in _FILLS:
            # `torch.masked_fill(x, mask, value)`, and the method without the first
            position = 2 if name == "masked_fill" and len(node.args) > 2 else _FILLS[name]
            return number(argument(node, position, "value", "fill_value"), source.names)
        if name == "where" and len(node.args) == 3:
            sizes = [found for one in node.args[1:] if (found := number(one, source.names)) is not None]
            return max(sizes, key=abs, default=None)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):  # logits[..., 0] = -1e9
        value = number(node.value, source.names)
        return value if value is not None and value < 0 else None
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Sub):
        for own, other in ((node.left, node.right), (node.right, node.left)):
            found = number(own, source.names)
            if found is not None and number(other, source.names) is None and _is_mask(other, found, node.op):
                return found
    return None


def _epsilon(node: ast.AST, source: Source) -> Seen | None:
    if not source.half_range:
        return None
    value: float | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for own, other in ((node.left, node.right), (node.right, node.left)):
            found = number(own, source.names)
            if found is not None and number(other, source.names) is None and _guards(node, source):
                value = found
    elif isinstance(node, ast.Call):
        name = called(node)
        if name in ("clamp", "clip", "clamp_", "clamp_min", "clamp_min_", "maximum"):
            of_torch = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
            of_torch = of_torch and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "torch"
            value = number(argument(node, 1 if of_torch else 0, "min"), source.names)
        elif name in ("normalize", "cosine_similarity", "CosineSimilarity", "PairwiseDistance", "pairwise_distance"):
            value = number(argument(node, -1, "eps"), source.names)
    if value is None or not 0 < value < FLOAT16.smallest_normal or in_float32(node, source.parents):
        return None
    if value <= FLOAT16.smallest_subnormal / 2:
        return "MP103", "warning", f"{value:g} is zero in float16: it guards nothing, and 0/0 is NaN"
    return "MP103", "note", f"{value:g} is below float16's smallest normal number, {FLOAT16.smallest_normal:.2g}"


def _summed(node: ast.AST, source: Source) -> Seen | None:
    if not isinstance(node, ast.Call) or not source.half_range:
        return None
    summed = any(
        keyword.arg == "reduction" and isinstance(keyword.value, ast.Constant) and keyword.value.value == "sum"
        for keyword in node.keywords
    ) and any(word in ast.unparse(node.func).lower() for word in _LOSS_WORDS)
    if not summed and called(node) == "sum" and isinstance(node.func, ast.Attribute) and not node.args:
        of = node.func.value
        summed = "loss" in called(of).lower() or "cross_entropy" in called(of)
    if not summed or divided(node, source.parents):
        return None
    return "MP104", "warning", "a sum over the batch times the loss scale overflows float16 at the first step"


def _ids(node: ast.AST, source: Source) -> Seen | None:
    if (
        called(node) not in ("long", "int")
        or not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
    ):
        return None
    of = node.func.value
    if not isinstance(of, ast.Subscript) or not isinstance(of.slice, ast.Tuple):
        return None
    parent = source.parents.get(node)
    held = parent.targets[0] if isinstance(parent, ast.Assign) and parent.value is node else None
    places: list[ast.AST] = [node]
    if isinstance(held, ast.Name):  # ids = x[:, :5].long(), and the look-up on a later line
        places = [one for one in ast.walk(source.tree) if isinstance(one, ast.Name) and one.id == held.id]
    if not any(_looked_up(place, source) for place in places):
        return None
    most = 2 ** (FLOAT16.fraction_bits + 1)
    return (
        "MP105",
        "warning",
        f"ids are cut out of a wider tensor and cast: as float16 they are exact up to {most:,} only",
    )


def _looked_up(node: ast.AST, source: Source) -> bool:
    for outer in ancestors(node, source.parents):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Call) and _LOOK_UP.search(ast.unparse(outer.func).lower()):
            return True
    return False


def _half_metric(node: ast.AST, _source: Source) -> Seen | None:
    if called(node) != "set_dtype" or not isinstance(node, ast.Call) or not node.args:
        return None
    given = node.args[0]
    if isinstance(given, ast.Attribute) and given.attr in ("half", "float16", "bfloat16"):
        return "MP106", "warning", f"the states of a metric add up in {given.attr}, which is full after a few thousand"
    return None


def _sparse(node: ast.AST, source: Source) -> Seen | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    text = ast.unparse(node.func)
    if not text.endswith((".sparse.mm", ".sparse.addmm", ".spmm")) and text not in ("sparse.mm", "torch.spmm"):
        return None
    if _autocast_is_off(node, source) or in_float32(node, source.parents):
        return None
    return "MP108", "error", f"`{text}` has no float16 kernel, and autocast does not cast for it"


def _autocast_is_off(node: ast.AST, source: Source) -> bool:
    return any(
        "autocast" in (text := ast.unparse(item.context_expr).replace(" ", "")) and "enabled=False" in text
        for outer in ancestors(node, source.parents)
        if isinstance(outer, ast.With | ast.AsyncWith)
        for item in outer.items
    )


def _is_mask(other: ast.AST, value: float, op: ast.operator) -> bool:
    text = ast.unparse(other).lower()
    named = any(word in text for word in _MASK_WORDS)
    if isinstance(op, ast.Mult):
        complement = isinstance(other, ast.BinOp) and isinstance(other.op, ast.Sub) and number(other.left, {}) == 1
        return named or complement or (value < 0 and called(other) in ("ones_like", "ones", "new_ones"))
    return named and value < 0


def _guards(node: ast.AST, source: Source) -> bool:
    """Whether a sum is what a quotient, a root or a logarithm is taken of."""
    parent = source.parents.get(node)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div):
        return parent.right is node
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow):
        return parent.left is node
    if isinstance(parent, ast.Attribute):  # (x + eps).log()
        return parent.attr in ("log", "sqrt", "rsqrt", "reciprocal", "log2", "log10", "pow")
    return (
        called(parent) in ("log", "sqrt", "rsqrt", "reciprocal", "log2", "log10", "div", "true_divide")
        if parent
        else False
    )


_RULES: tuple[Callable[[ast.AST, Source], Seen | None], ...] = (
    _cross_entropy, _mask, _epsilon, _summed, _ids, _half_metric, _sparse,
)  # fmt: skip
