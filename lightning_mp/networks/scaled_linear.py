"""A matrix product in half precision that inputs beyond float16's range cannot break."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def in_half_precision(weight: Tensor) -> bool:
    """Whether a product with `weight` would be computed in float16 or bfloat16, by autocast or by its own dtype."""
    return torch.is_autocast_enabled(weight.device.type) or weight.dtype in (torch.float16, torch.bfloat16)


def widened(x: Tensor) -> Tensor:
    """`x` in float32; float64 stays what it is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def scaled_linear(linear: nn.Linear, x_BD: Tensor) -> Tensor:
    """`linear(x_BD)` for a layer without bias, finite in float16 where the result is finite in float32.

    In half precision each row with entries beyond 1 is divided by a power of two before the product and multiplied by
    it afterwards, in float32. No bit is lost by that. In float32 and float64 this is the plain product.

    Args:
        linear: A layer without bias.
        x_BD: Input, (B, D), float32.

    Returns:
        Shape (B, `linear.out_features`), float32.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        ...     _ = layer.weight.fill_(1.0)
        ...     scaled_linear(layer, torch.tensor([[2.0**20, 2.0**20]])), layer(torch.tensor([[2.0**20, 2.0**20]]))
        (tensor([[2097152.]]), tensor([[inf]], dtype=torch.float16))
    """
    if not in_half_precision(linear.weight):
        product: Tensor = linear(x_BD)
        return product
    largest_B1 = x_BD.detach().abs().amax(dim=1, keepdim=True).clamp(min=1.0)
    scale_B1 = torch.exp2(torch.ceil(torch.log2(largest_B1)))
    half: Tensor = linear((x_BD / scale_B1).to(linear.weight.dtype))
    return widened(half) * scale_B1
