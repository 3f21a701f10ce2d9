"""A copy of a module that only computes: no hooks, no compiler, no training mode."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from torch import nn


def inference_copy(module: nn.Module) -> nn.Module:
    """Copy a module for export: without its hooks, uncompiled, in float32, on the CPU, in evaluation mode.

    Hooks are left out before anything is copied, not removed afterwards: they often hold a callback, and with it a
    Trainer and its data. Traced by the exporter they would also store its placeholder tensors in the monitor.

    Args:
        module: Any module; it is only read.

    Returns:
        The copy. It shares no tensor with `module`.

    Example:
        >>> import torch
        >>> linear = torch.nn.Linear(2, 1).half()
        >>> handle = linear.register_forward_hook(lambda *_: print("hook"))
        >>> inference_copy(linear)(torch.ones(1, 2)).dtype
        torch.float32
    """
    memo: dict[int, Any] = {}  # what deepcopy takes for already copied
    for part in reversed(list(module.modules())):  # children first: a compiled module may hold another one
        for name, value in vars(part).items():
            if "_hooks" in name and isinstance(value, dict):
                memo[id(value)] = OrderedDict()
        compiled_call = vars(part).get("_compiled_call_impl")  # of `part.compile()`
        if compiled_call is not None:
            memo[id(compiled_call)] = None
        original = getattr(part, "_orig_mod", None)  # of `torch.compile(part)`
        if isinstance(original, nn.Module):
            memo[id(part)] = copy.deepcopy(original, memo)
    copied: nn.Module = copy.deepcopy(module, memo)
    return copied.float().cpu().eval().requires_grad_(False)
