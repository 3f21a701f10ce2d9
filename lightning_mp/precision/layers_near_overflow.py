"""Tell which layers reach, or nearly reach, the end of float16."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

from lightning_mp.precision.layer_ranges import LayerRange

# A look-up is not cast, so there is nothing to keep.
_NEVER_SHORT = (nn.Embedding, nn.EmbeddingBag)
# Inside they compute in float32 whatever they are given.
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # noqa: SLF001 - the base of batch and instance norms


@dataclass(slots=True, kw_only=True)
class NearOverflow:
    """Layers to keep in float32, and what keeping layers cannot help.

    Args:
        layers: The largest magnitude seen there, by name; infinite where a value overflowed.
        outside: Layers that are fed with numbers too large, by arithmetic of 16 bits that stands in the `forward` of
            the outermost module itself.
    """

    layers: dict[str, float] = field(default_factory=dict)
    outside: dict[str, float] = field(default_factory=dict)


def layers_near_overflow(
    ranges: Iterable[LayerRange], modules: Mapping[str, nn.Module], limit: float, kept: Collection[str] = ()
) -> NearOverflow:
    """Judge what was measured.

    A layer is near where what goes in or comes out is above the limit. Where a value isn't finite, the layer is one
    that made it so of finite ones, or the next behind such a layer; what lies farther on is not blamed. Where
    arithmetic between the layers made the numbers large, the layers that feed it are near too: with their output in
    float32 it is done in float32. Where it is a product of matrices, which autocast shortens all the same, the module
    around it is. What came with the batch and isn't finite blames nobody.

    Args:
        ranges: As `LayerRanges` gives them.
        modules: Modules that were called, by name.
        limit: Largest magnitude that a value of a layer may have in float16.
        kept: Modules that are in float32 already.

    Returns:
        Names and magnitudes, in the order the layers ran.

    Example:
        >>> ranges = [LayerRange(layer="0", entered=2.0, computed=9000.0), LayerRange(layer="1", entered=5.0)]
        >>> layers_near_overflow(ranges, {"0": nn.Linear(1, 1), "1": nn.Linear(1, 1)}, 8188.0).layers
        {'0': 9000.0}
    """
    seen = {entry.layer: entry for entry in ranges}
    found = NearOverflow()
    for entry in seen.values():
        size = _size(entry, seen, limit)
        if size is None:
            continue
        if not entry.kept and _may_be_kept(entry, modules):
            found.layers.setdefault(entry.layer, size)
        feeding = [seen[name] for name in entry.feeds if name in seen]
        if entry.direct or not entry.short or entry.entered <= limit:
            continue
        if any(other.computed > limit for other in feeding):
            continue
        # Made large on the way, by what stands between the layers.
        short = [other.layer for other in feeding if other.result_short and _is_cast(other, modules)]
        if short:
            for name in sorted(short, key=list(seen).index):
                found.layers.setdefault(name, size)
        elif around := _around([entry.layer, *entry.feeds], modules, kept):
            found.layers.setdefault(around, size)
        elif feeding:
            found.outside.setdefault(entry.layer, size)
    return found


def _size(entry: LayerRange, seen: Mapping[str, LayerRange], limit: float) -> float | None:
    """The magnitude that speaks against a layer in float16, or None."""
    if entry.began:
        return math.inf
    if math.isfinite(entry.entered):
        largest = max(entry.entered, entry.computed)
        return largest if largest > limit else None
    feeding = [seen[name] for name in entry.feeds if name in seen]
    made_between = bool(feeding) and all(math.isfinite(other.computed) for other in feeding)
    return math.inf if made_between or any(other.began for other in feeding) else None


def _is_cast(entry: LayerRange, modules: Mapping[str, nn.Module]) -> bool:
    return entry.layer in modules and not isinstance(modules[entry.layer], _NEVER_SHORT)


def _may_be_kept(entry: LayerRange, modules: Mapping[str, nn.Module]) -> bool:
    if not _is_cast(entry, modules) or not entry.cast:
        return False
    module = modules[entry.layer]
    # What makes nothing larger and has no product, such as ReLU, is right in the format of what it is given; a loss
    # such as MSELoss gives float32 by itself.
    bare = next(module.parameters(), None) is None
    if not bare and not isinstance(module, _NORMS):
        return True
    return entry.computed > entry.entered and (entry.result_short or not bare)


def _around(names: list[str], modules: Mapping[str, nn.Module], kept: Collection[str]) -> str:
    """The innermost module around some others that can still be kept; empty for the outermost one."""
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts)) - 1  # a layer is not around itself
    path = parts[0][: next((i for i in range(shortest) if len({part[i] for part in parts}) > 1), shortest)]
    while path and (".".join(path) in kept or ".".join(path) not in modules):
        path.pop()
    return ".".join(path)
