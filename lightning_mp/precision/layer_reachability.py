"""Find the input and output layers of a module from one forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.hookable_modules import scripted_modules

_MULTIPLYING = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.MultiheadAttention, nn.RNNBase)  # noqa: SLF001 - the base of all convolutions
# Looked up by row or scaled element by element: no product that autocast would do in float16.
_NOT_MULTIPLYING = (nn.Embedding, nn.EmbeddingBag, nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)  # noqa: SLF001 - the base of batch and instance norms


@dataclass(slots=True, kw_only=True)
class _Call:
    layer: str
    inputs: list[Node]
    outputs: list[Node]


class LayerReachability:
    """Hooks on the layers that multiply matrices, and what one forward pass tells of their order.

    An input layer is one whose inputs depend on no other such layer's output; an output layer is one whose output no
    other such layer depends on. The order of registration would be wrong for many recommenders; this is not. A layer
    of one's own counts if it owns a parameter of two dimensions or more and no layer below it multiplies. Layers of
    which nothing is trained, and what happens inside re-entrant checkpoints or compiled graphs, are not seen. Nor is
    TorchScript, which takes no hooks: what reads its output is no input layer, but what feeds it may count as output.

    Example:
        >>> import torch
        >>> net = nn.ModuleDict({"head": nn.Linear(2, 1), "mid": nn.Linear(2, 2), "bottom": nn.Linear(3, 2)})
        >>> watch = LayerReachability()
        >>> watch.attach(net)
        >>> _ = net["head"](net["mid"](net["bottom"](torch.ones(1, 3))))
        >>> watch.detach()
        >>> watch.edges()
        (('bottom',), ('head',))
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._calls: list[_Call] = []
        self._scripted: set[int] = set()
        self._stance = ExitStack()

    def attach(self, module: nn.Module) -> None:
        """Put a hook on every layer that multiplies, and let what is compiled run uncompiled until `detach`.

        Args:
            module: The outermost module.
        """
        self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        self._scripted = {
            id(parameter)
            for scripted in scripted_modules(module).values()
            for part in scripted.modules()
            if getattr(part, "original_name", "") not in ("Embedding", "EmbeddingBag")
            for parameter in part.parameters(recurse=False)
            if parameter.dim() >= 2
        }
        for name, layer in _multiplying_layers(module, "", set()):
            self._handles.append(layer.register_forward_hook(self._hook(name), with_kwargs=True))

    def detach(self) -> None:
        """Take the hooks off; what was seen stays."""
        self._stance.close()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def edges(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Judge what was seen, and forget it: it holds the graph, so ask before the backward pass frees it.

        Returns:
            Names of the input layers and of the output layers, each in the order they ran.
        """
        outputs = {node for call in self._calls for node in call.outputs}
        fed = _reachable(node for call in self._calls for node in call.inputs)
        scripted = {node for node in fed if id(getattr(node, "variable", None)) in self._scripted}
        reaches = _reaching({node for call in self._calls for node in call.inputs}, outputs | scripted)
        first = [call.layer for call in self._calls if not any(node in reaches for node in call.inputs)]
        last = [call.layer for call in self._calls if not any(node in fed for node in call.outputs)]
        self._calls.clear()
        return tuple(dict.fromkeys(first)), tuple(dict.fromkeys(last))

    def _hook(self, name: str) -> Any:
        def remember(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            nodes = _nodes(output)
            if nodes:
                self._calls.append(_Call(layer=name, inputs=_nodes((args, kwargs)), outputs=nodes))

        return remember


def _multiplying_layers(module: nn.Module, prefix: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
        return
    seen.add(id(module))
    if isinstance(module, _MULTIPLYING) and prefix:
        yield prefix, module
        return
    found = False
    for name, child in module.named_children():
        name_there = prefix if name == "_orig_mod" else f"{prefix}.{name}".removeprefix(".")
        for entry in _multiplying_layers(child, name_there, seen):
            found = True
            yield entry
    owns = any(parameter.dim() >= 2 for parameter in module.parameters(recurse=False))
    if not found and owns and prefix and not isinstance(module, _NOT_MULTIPLYING):
        yield prefix, module


def _nodes(values: Any) -> list[Node]:
    return [leaf.grad_fn for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]


def _reachable(starts: Iterator[Node]) -> set[Node]:
    seen = set(starts)
    stack = list(seen)
    while stack:
        for following, _ in stack.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return seen


def _reaching(starts: set[Node], targets: set[Node]) -> set[Node]:
    """Of everything reachable from `starts`, the nodes that are targets or lead to one."""
    before: dict[Node, list[Node]] = {}
    for node in _reachable(iter(starts)):
        for following, _ in node.next_functions:
            if following is not None:
                before.setdefault(following, []).append(node)
    found = {node for node in targets if node in before or node in starts}
    stack = list(found)
    while stack:
        for previous in before.get(stack.pop(), ()):
            if previous not in found:
                found.add(previous)
                stack.append(previous)
    return found
