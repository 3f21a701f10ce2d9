"""In which order a backward pass reaches the parameters."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node


def backward_order(loss: Tensor) -> dict[int, int]:
    """Distance of every parameter from the loss, in steps of the backward pass, along the longest way.

    A layer that feeds another is always farther than it. Under `torch.compile` the graph is one opaque step and
    all its parameters are equally far.

    Args:
        loss: Scalar with its graph still there.

    Returns:
        Distance by `id` of the parameter; those that the loss does not depend on are missing.

    Example:
        >>> import torch
        >>> first, last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        >>> order = backward_order(last(first(torch.ones(1, 2))).sum())
        >>> order[id(last.weight)] < order[id(first.weight)]
        True
    """
    if loss.grad_fn is None:
        return {}
    distance: dict[Node, int] = {loss.grad_fn: 0}
    parameters: dict[int, int] = {}
    for node in _topological(loss.grad_fn):
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            parameters[id(variable)] = distance[node]
        for following, _ in node.next_functions:
            if following is not None:
                distance[following] = max(distance.get(following, 0), distance[node] + 1)
    return parameters


def _topological(start: Node) -> list[Node]:
    """Nodes so that each stands before everything it leads to; no recursion, graphs are deep."""
    finished: list[Node] = []
    seen = {start}
    stack = [(start, iter(start.next_functions))]
    while stack:
        node, rest = stack[-1]
        for following, _ in rest:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append((following, iter(following.next_functions)))
                break
        else:
            finished.append(node)
            stack.pop()
    finished.reverse()
    return finished
