"""Check on one backward pass in which precision the gradients of layers were computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.representability import came_out_of


class GradientFormat:
    """Hooks on the weights of layers that look at each gradient before it is accumulated or averaged.

    Embedding tables are passed over: autocast leaves them alone; so is, for one pass, what is frozen in it.

    Args:
        layers: Modules by name.
        dtype: The format that autocast computes in.
    """

    def __init__(self, layers: Mapping[str, nn.Module], dtype: torch.dtype) -> None:
        self._weights = [
            (name, weight)
            for name, layer in layers.items()
            for part in layer.modules()
            if not isinstance(part, nn.Embedding | nn.EmbeddingBag)
            for weight in part.parameters(recurse=False)
            if weight.dim() >= 2
        ]
        self._dtype = dtype
        self._handles: list[RemovableHandle] = []
        self._seen: dict[str, list[Tensor]] = {}

    @property
    def names(self) -> set[str]:
        """Layers that have a weight to look at."""
        return {name for name, _ in self._weights}

    @property
    def is_attached(self) -> bool:
        """Whether hooks stand on a weight."""
        return bool(self._handles)

    def attach(self, judged: Collection[str] = ()) -> None:
        """Put the hooks on; call after the forward pass and before the backward pass.

        Args:
            judged: Layers whose verdict is known. Where no other layer is trained in this pass, nothing happens.
        """
        trained = [(name, weight) for name, weight in self._weights if weight.requires_grad]
        if all(name in judged for name, _ in trained):
            return
        for name, weight in trained:
            self._handles.append(weight.register_hook(self._hook(name)))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def detach(self) -> None:
        """Take the hooks off; what was seen stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def verdict(self) -> dict[str, bool]:
        """Layers whose gradients could be judged, and whether they were computed in float32; forgets what it saw.

        Returns:
            False for a layer of which one weight's gradient came out of the shorter format. Layers that could not be
            judged, for want of values, are missing.
        """
        result: dict[str, bool] = {}
        for name, flags in self._seen.items():
            told = [flag for flag in torch.stack(flags).tolist() if flag >= 0]
            if told:
                result[name] = not any(told)
        self._seen.clear()
        return result

    def _hook(self, name: str) -> object:
        def look(gradient: Tensor) -> None:
            if gradient.dtype is torch.float32:
                self._seen.setdefault(name, []).append(came_out_of(gradient, self._dtype))

        return look


def cast_parameters(loss: Tensor) -> set[int]:
    """Parameters that autocast casts somewhere in a graph; what is compiled is not seen.

    Args:
        loss: Scalar with its graph still there.

    Returns:
        Their `id`s.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> with torch.autocast("cpu", dtype=torch.float16):
        ...     loss = layer(torch.ones(1, 2)).float().sum()
        >>> cast_parameters(loss) == {id(layer.weight), id(layer.bias)}
        True
    """
    cast: set[int] = set()
    seen: set[Node] = set()
    stack = [loss.grad_fn] if loss.grad_fn is not None else []
    while stack:
        node = stack.pop()
        for following, _ in node.next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is not None and node.name().startswith("ToCopyBackward"):
                cast.add(id(variable))
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return cast
