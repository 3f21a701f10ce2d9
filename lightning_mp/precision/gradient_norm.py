"""The norm of an optimizer's gradients, as if no loss scale were on them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


@torch.no_grad()
def gradient_norm(optimizer: Optimizer, *, scale: float = 1.0) -> Tensor | None:
    """2-norm of all gradients of an optimizer together; changes nothing and reads nothing from the device.

    Args:
        optimizer: The optimizer, just before its step.
        scale: Loss scale that the gradients still carry.

    Returns:
        A scalar in float32, or float64 where a gradient is; None where there is no gradient.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0]) * 1024
        >>> gradient_norm(torch.optim.SGD([weight]), scale=1024.0)
        tensor(5.)
    """
    values: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.numel():
                values.append(gradient.coalesce().values() if gradient.is_sparse else gradient)
    if not values:
        return None
    wide = torch.float64 if any(value.dtype is torch.float64 for value in values) else torch.float32
    by_device: dict[torch.device, list[Tensor]] = {}
    for value in values:
        by_device.setdefault(value.device, []).append(value)
    norms = [norm for group in by_device.values() for norm in torch._foreach_norm(group, 2, dtype=wide)]  # noqa: SLF001 - as torch's own clipping does
    together: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(values[0].device) for norm in norms]))
    return together / scale
