"""What float16 breaks, seen in one forward pass."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.lint.finding import LintFinding

_TO_INTEGER = {"long", "int", "to", "type"}
_KEEPS = {"__getitem__", "squeeze", "unsqueeze", "view", "reshape", "contiguous", "flatten", "select", "t", "transpose",
          "clamp", "remainder", "add", "__add__"}  # fmt: skip


class LintMode(TorchFunctionMode):
    """While it is on, looks at every function of torch that is called.

    Args:
        half_range: Whether the short format has float16's range.

    Attributes:
        findings: What was seen; places are names of functions.
    """

    def __init__(self, *, half_range: bool = True) -> None:
        super().__init__()
        self.findings: dict[str, LintFinding] = {}
        self._half_range = half_range
        self._from_float: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self._before(name, args, kwargs)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and args and isinstance(args[0], Tensor) and not result.is_floating_point():
            casts = name in _TO_INTEGER and args[0].is_floating_point()
            if casts or (name in _KEEPS and self._from_float.get(id(args[0])) is args[0]):
                self._from_float[id(result)] = result
        return result

    def _before(self, name: str, args: Any, kwargs: Any) -> None:
        if name == "binary_cross_entropy":
            problem = "it refuses to run under autocast on a GPU; a CPU runs it, and hides that"
            if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
                self._tell("MP101", "error", name, problem)
        elif name in ("masked_fill", "masked_fill_") and self._half_range:
            value = args[2] if len(args) > 2 else kwargs.get("value")
            if isinstance(value, int | float) and FLOAT16.largest < abs(value) < math.inf and _short(args[0]):
                self._tell("MP102", "error", name, f"{value:g} is beyond float16's range of {FLOAT16.largest:g}")
        elif name == "embedding":
            ids = args[0] if args else kwargs.get("input")
            if isinstance(ids, Tensor) and self._from_float.get(id(ids)) is ids:
                most = 2 ** (FLOAT16.fraction_bits + 1)
                problem = f"its ids came out of a float tensor: as float16 they are exact up to {most:,} only"
                self._tell("MP105", "warning", name, problem)

    def _tell(self, code: str, severity: Any, place: str, problem: str) -> None:
        self.findings.setdefault(code, LintFinding(code=code, severity=severity, place=place, problem=problem))


def _short(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
