"""How large the numbers are that go into the layers of a module and come out of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.hookable_modules import hookable_modules, layers_that_run

_SAMPLE = 65_536
# What is masked before a softmax is -inf, the least number of a format, -1e9 or -1e4, and the rest is scores.
_MASKED, _SCORE = -10_000.0, 1_000.0


@dataclass(slots=True, kw_only=True)
class LayerRange:
    """What was seen of one layer in a forward pass, or in several.

    Args:
        layer: Its name.
        entered: Largest magnitude that went in; infinite where a value was not finite. Where what came out is finite,
            a mask of large negative values, handed over as it is or to a layer without parameters, is no magnitude.
        computed: Largest magnitude that came out.
        short: Whether something that went in was of 16 bits.
        direct: Whether all that went in was the very output of another layer, or came from no layer at all.
        feeds: The layers last passed on the way to what went in.
        result_short: Whether what came out was of 16 bits.
        kept: Whether the layer is in float32 already.
        began: Whether it once made something that isn't finite of what was.
        cast: Whether autocast was on where it was called, or something that went in was of 16 bits.
    """

    layer: str
    entered: float = 0.0
    computed: float = 0.0
    short: bool = False
    direct: bool = True
    feeds: set[str] = field(default_factory=set)
    result_short: bool = False
    kept: bool = False
    began: bool = False
    cast: bool = True


@dataclass(slots=True, kw_only=True)
class _Call:
    range: LayerRange
    entered: list[int]
    computed: list[int]
    masks: set[int]
    nodes: list[Node]


class _Hook:
    """The hook of one layer. A copy of the module, made in the middle of a step, gets one that does nothing."""

    def __init__(
        self, ranges: LayerRanges | None = None, name: str = "", *, kept: bool = False, measures: bool = False
    ) -> None:
        self.ranges, self.name, self.kept, self.measures = ranges, name, kept, measures

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.ranges is not None and self.ranges.is_open and not torch.compiler.is_compiling():
            self.ranges.ran.add(self.name)
            if self.measures:
                self.ranges.see(self.name, module, (args, kwargs), output, kept=self.kept)


class LayerRanges:
    """Hooks that measure what goes into each layer and comes out of it; all numbers are read from the device at once.

    What is compiled runs uncompiled while the hooks are on. What a layer changes in place counts as it came out.

    Args:
        module: The outermost module.
        kept: Names of modules that are in float32 already; what is inside them is not measured.
        whole: Whether all values are looked at, or some 65 536 of each tensor, taken by rows.

    Attributes:
        ran: Names of all modules that were called, those that only hold layers among them.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> _ = nn.init.constant_(net[0].weight, 2.0), nn.init.zeros_(net[0].bias)
        >>> ranges = LayerRanges(net)
        >>> _ = net(torch.tensor([[8.0], [-9.0]]))
        >>> ranges.detach()
        >>> [(entry.layer, entry.entered, entry.computed) for entry in ranges.read()]
        [('0', 9.0, 18.0), ('1', 18.0, 16.0)]
    """

    def __init__(self, module: nn.Module, *, kept: Collection[str] = (), whole: bool = True) -> None:
        self.is_open = True
        self.ran: set[str] = set()
        self._whole = whole
        self._calls: list[_Call] = []
        self._numbers: list[Tensor] = []
        self._places: dict[tuple[Node, int], int] = {}
        self._made_by: dict[Node, str] = {}
        self._unsettled = 0
        self._stance = ExitStack()
        self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        self._handles: list[RemovableHandle] = []
        kept, layers = set(kept), {id(layer) for _, layer in layers_that_run(module)}
        for name, inner in hookable_modules(module):
            shown = name.replace("_orig_mod.", "")
            if name and not any(shown.startswith(f"{outer}.") for outer in kept):
                hook = _Hook(self, shown, kept=shown in kept, measures=shown in kept or id(inner) in layers)
                self._handles.append(inner.register_forward_hook(hook, with_kwargs=True))

    def detach(self) -> None:
        """Take the hooks off; what was seen stays."""
        self.is_open = False
        self._stance.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @torch.no_grad()
    def see(self, name: str, module: nn.Module, inputs: Any, output: Any, *, kept: bool) -> None:
        """Called by the hooks."""
        entered, computed = _floating(inputs), _floating(output)
        short = any(leaf.dtype.itemsize == 2 for leaf in entered)
        seen = LayerRange(
            layer=name,
            short=short,
            direct=all(leaf.grad_fn is None or leaf.grad_fn in self._made_by for leaf in entered),
            result_short=any(leaf.dtype.itemsize == 2 for leaf in computed),
            kept=kept,
            cast=short or any(torch.is_autocast_enabled(leaf.device.type) for leaf in computed),
        )
        nodes = [leaf.grad_fn for leaf in entered if leaf.grad_fn is not None]
        places = [self._place(leaf) for leaf in entered], [self._place(leaf) for leaf in computed]
        bare = next(module.parameters(), None) is None  # a softmax, or what masks for it
        masks = {place for leaf, place in zip(entered, places[0], strict=True) if bare or leaf.grad_fn is None}
        masks.update(places[1] if bare else ())
        self._calls.append(_Call(range=seen, entered=places[0], computed=places[1], masks=masks, nodes=nodes))
        self._made_by.update((leaf.grad_fn, name) for leaf in computed if leaf.grad_fn is not None)

    def settle(self) -> None:
        """Follow the graph from layer to layer, and close; call before a backward pass frees it.

        A checkpointed segment runs once more in the backward pass, which tells nothing new.
        """
        self.is_open = False
        for call in self._calls[self._unsettled :]:
            call.range.feeds = _last_passed(call.nodes, self._made_by) - {call.range.layer}
            call.nodes = []
        self._unsettled = len(self._calls)
        self._places.clear()
        self._made_by.clear()

    def read(self) -> tuple[LayerRange, ...]:
        """What was seen, each layer once, in the order they ran first; one read from the device. Forgets it."""
        self.settle()
        device = self._numbers[0].device if self._numbers else torch.device("cpu")
        stacked = [number.float().to(device) for number in self._numbers]
        numbers = (
            [math.inf if math.isnan(value) else value for value in torch.stack(stacked).tolist()] if stacked else []
        )
        found: dict[str, LayerRange] = {}
        for call in self._calls:
            seen = call.range
            entry = found.setdefault(seen.layer, seen)
            masks = {place for place in call.masks if numbers[place] < 0}
            computed = max((abs(numbers[place]) for place in call.computed if place not in masks), default=0.0)
            if not math.isfinite(computed):
                masks.clear()
            entered = max((abs(numbers[place]) for place in call.entered if place not in masks), default=0.0)
            entry.entered, entry.computed = max(entry.entered, entered), max(entry.computed, computed)
            entry.began = entry.began or computed == math.inf > entered
            entry.short, entry.direct = entry.short or seen.short, entry.direct and seen.direct
            entry.result_short = entry.result_short or seen.result_short
            entry.feeds |= seen.feeds
            entry.cast = entry.cast or seen.cast
        self._calls.clear()
        self._numbers.clear()
        self._unsettled = 0
        return tuple(found.values())

    def _place(self, leaf: Tensor) -> int:
        key = None if leaf.grad_fn is None else (leaf.grad_fn, leaf.output_nr)
        if key is not None and key in self._places:
            return self._places[key]
        self._numbers.append(self._largest(leaf))
        if key is not None:
            self._places[key] = len(self._numbers) - 1
        return len(self._numbers) - 1

    def _largest(self, leaf: Tensor) -> Tensor:
        """The largest magnitude; below zero where the values may be masked scores."""
        if not self._whole and leaf.numel() > _SAMPLE:
            leaf = leaf[:: min(len(leaf), -(-leaf.numel() // _SAMPLE))]
        least, most = torch.aminmax(leaf)
        largest = torch.maximum(-least, most)
        return torch.where((least <= _MASKED) & (most < _SCORE), -largest, largest)


def _floating(values: Any) -> list[Tensor]:
    return [
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, Tensor)
        and leaf.is_floating_point()
        and leaf.dtype.itemsize > 1  # those of 8 bits are codes, and know no largest
        and leaf.layout is torch.strided
        and leaf.numel()
    ]


def _last_passed(starts: list[Node], made_by: dict[Node, str]) -> set[str]:
    """The layers whose outputs are met first, walking back from some nodes."""
    found: set[str] = set()
    seen, stack = set(starts), list(starts)
    while stack:
        node = stack.pop()
        if node in made_by:
            found.add(made_by[node])
            continue
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                stack.append(before)
    return found
