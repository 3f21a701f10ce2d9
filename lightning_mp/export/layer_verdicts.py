"""Which layers of a module may compute in float16, and why the others may not."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lightning_mp.export.encoded_rows import EncodedRows, module_logits
from lightning_mp.export.precision_policy import INPUT, OUTPUT, PrecisionPolicy
from lightning_mp.float_formats import FLOAT16
from lightning_mp.precision.hookable_modules import hookable_modules
from lightning_mp.precision.layer_reachability import LayerReachability
from lightning_mp.precision.module_names import matching_modules

_MOVED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d)
_OURS: Final = "lightning_mp.networks."
"""Layers of this package keep in float32 what must be, whatever the type of their weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVerdicts:
    """What may become of the layers that multiply.

    Attributes:
        reasons: For each such layer by name why it stays in float32; an empty text where it need not.
        largest: Largest magnitude on real rows of what goes into a module and of all that it computes, by name.
        limit: Largest magnitude that float16 may get.
    """

    reasons: Mapping[str, str]
    largest: Mapping[str, float]
    limit: float

    def movable(self, name: str, part: nn.Module) -> bool:
        """Whether a module as a whole may compute in float16."""
        if name in self.reasons:
            return not self.reasons[name]
        inside = [reason for layer, reason in self.reasons.items() if layer.startswith(f"{name}.")]
        plain = all(type(p) in _MOVED or not _of_torch(p) or not any(True for _ in p.parameters(recurse=False))
                    for p in part.modules())  # fmt: skip
        return bool(name and inside and not any(inside) and plain) and self.largest.get(name, torch.inf) <= self.limit


def layer_verdicts(
    module: nn.Module, rows: EncodedRows, computed: Mapping[str, float], policy: PrecisionPolicy
) -> LayerVerdicts:
    """Judge every layer that multiplies.

    Args:
        module: In float32; it is only read.
        rows: Real rows.
        computed: Largest magnitude that each module computes, as `largest_by_module` gives it.
        policy: Which layers stay in any case, and the limit.

    Raises:
        ConfigurationError: A pattern of `policy.keep_in_fp32` matches no module.
    """
    entered = _largest_inputs(module, rows)
    largest = {name: max(value, computed.get(name, torch.inf)) for name, value in entered.items()}
    kept = _kept(module, rows, policy.keep_in_fp32)
    shared = _shared(module)
    reasons: dict[str, str] = {}
    for name, part in module.named_modules():
        if not isinstance(part, _MOVED) or not name:
            continue
        if name in kept:
            reasons[name] = kept[name]
        elif type(part) not in _MOVED and not type(part).__module__.startswith(_OURS):
            reasons[name] = f"`{type(part).__name__}` has a `forward` of its own"
        elif name not in entered:
            reasons[name] = "its weights are used without a call of it"
        elif name in shared:
            reasons[name] = f"it shares weights with `{shared[name]}`"
        else:
            reasons[name] = _size(part, largest[name], policy.largest_activation)
    return LayerVerdicts(reasons=reasons, largest=largest, limit=policy.largest_activation)


def _size(part: nn.Module, largest: float, limit: float) -> str:
    """Why a layer's numbers are too large for float16, or an empty text."""
    weight = max((float(p.detach().abs().max()) for p in part.parameters() if p.numel()), default=0.0)
    if not weight <= limit:
        return f"its largest weight is {weight:g}; float16 ends at {FLOAT16.largest:g}"
    if not largest <= limit:
        return f"it reaches |x| = {largest:.6g} on real rows; float16 ends at {FLOAT16.largest:g}"
    return ""


def _shared(module: nn.Module) -> dict[str, str]:
    """For each module that shares a parameter the name of another one that has it too."""
    owners: dict[int, str] = {}
    shared: dict[str, str] = {}
    for name, part in module.named_modules():
        for parameter in part.parameters(recurse=False):
            first = owners.setdefault(id(parameter), name)
            if first != name:
                shared[name], shared[first] = first, name
    return shared


def _of_torch(part: nn.Module) -> bool:
    return type(part).__module__.startswith("torch.")


def _largest_inputs(module: nn.Module, rows: EncodedRows) -> dict[str, float]:
    """Largest magnitude of what goes into each module that is called."""
    found: dict[str, float] = {}

    def watch(name: str) -> Any:
        def see(_: nn.Module, args: Any, kwargs: Any) -> None:
            sizes = [leaf.abs().amax().item() for leaf in tree_leaves((args, kwargs))
                     if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()]  # fmt: skip
            # NaN goes through `max` unseen, and means the same as infinity here.
            found[name] = max([found.get(name, 0.0), *(size if size == size else torch.inf for size in sizes)])  # noqa: PLR0124  # only NaN differs from itself

        return see

    handles = [
        part.register_forward_pre_hook(watch(name), with_kwargs=True) for name, part in hookable_modules(module) if name
    ]
    try:
        module_logits(module, rows)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _kept(module: nn.Module, rows: EncodedRows, keep: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if {INPUT, OUTPUT} & set(keep):
        trained = copy.deepcopy(module).requires_grad_(True)
        watch = LayerReachability()
        watch.attach(trained)
        try:
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                trained(rows[:4].tensors())
        finally:
            watch.detach()
        first, last = watch.edges()
        found.update(dict.fromkeys(first, "an input layer") if INPUT in keep else {})
        found.update(dict.fromkeys(last, "an output layer") if OUTPUT in keep else {})
    patterns = [pattern for pattern in keep if pattern not in (INPUT, OUTPUT)]
    if patterns:
        for outer in matching_modules(module, patterns):
            names = [name for name, _ in module.named_modules() if name == outer or name.startswith(f"{outer}.")]
            found.update(dict.fromkeys(names, "kept by name"))
    return found
