"""A linear map in float32 whatever the precision of the run."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from lightning_mp.networks.scaled_linear import in_half_precision, widened

# B = batch, D = width of the input, T = width of the output


def float32_linear(x_BD: Tensor, weight_TD: Tensor, bias_T: Tensor | None = None) -> Tensor:
    """`linear(x, weight, bias)` in float32 whatever the precision of the run.

    Under autocast the product is written out as multiply and add: autocast leaves those in float32, forward and
    backward. A nested `autocast(enabled=False)` would not do, since `torch.compile` runs its backward in half
    precision all the same. For narrow maps: the written-out product takes B * T * D numbers.

    Args:
        x_BD: Input, (B, D).
        weight_TD: Weights, (T, D).
        bias_T: Added to each row, (T,).

    Returns:
        Shape (B, T), float32; float64 where the weights are.

    Example:
        >>> import torch
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     float32_linear(torch.ones(3, 4), torch.ones(2, 4)).dtype
        torch.float32
    """
    product: Tensor
    if in_half_precision(weight_TD):
        product = (widened(x_BD).unsqueeze(1) * widened(weight_TD)).sum(dim=2)
        return product if bias_T is None else product + widened(bias_T)
    return linear(widened(x_BD), widened(weight_TD), None if bias_T is None else widened(bias_T))
