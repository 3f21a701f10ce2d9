"""Linear layers that compute in float16 inside a module of float32."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lightning_mp.export.layer_verdicts import LayerVerdicts


def halve_layers(module: nn.Module, verdicts: LayerVerdicts, sample: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Move layers to float16, in place: input cast to float16, output back to float32, weights stored in float16.

    Where all that a module computes may be float16 it moves as a whole, so that its layers hand float16 to each other.

    Args:
        module: Changed in place.
        verdicts: Which layers may move.
        sample: A batch, to see that the module still runs.

    Returns:
        Names of the modules that moved, the outermost ones.
    """
    moved: list[str] = []

    def visit(name: str, part: nn.Module) -> None:
        if verdicts.movable(name, part) and _move(module, part, sample):
            moved.append(name)
            return
        for child, inner in part.named_children():
            visit(f"{name}.{child}".removeprefix("."), inner)

    visit("", module)
    return tuple(moved)


def half_weights(module: nn.Module, moved: tuple[str, ...]) -> frozenset[str]:
    """Names of all weights inside of the modules that `halve_layers` moved."""
    return frozenset(name for name in module.state_dict() if any(name.startswith(f"{part}.") for part in moved))


def _move(module: nn.Module, part: nn.Module, sample: Mapping[str, Tensor]) -> bool:
    before = copy.deepcopy(part.state_dict())
    part.half()
    handles = [
        part.register_forward_pre_hook(_to_half, with_kwargs=True),
        part.register_forward_hook(_to_float),
    ]
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            module(dict(sample))
    except Exception:  # whatever a `forward` raises when constants of its own meet float16
        for handle in handles:
            handle.remove()
        part.float().load_state_dict(before)
        return False
    return True


def _to_half(_: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map(lambda leaf: _cast(leaf, torch.float32, torch.float16), (args, kwargs))


def _to_float(_: nn.Module, __: Any, output: Any) -> Any:
    return tree_map(lambda leaf: _cast(leaf, torch.float16, torch.float32), output)


def _cast(leaf: Any, source: torch.dtype, target: torch.dtype) -> Any:
    return leaf.to(target) if isinstance(leaf, Tensor) and leaf.dtype == source else leaf
