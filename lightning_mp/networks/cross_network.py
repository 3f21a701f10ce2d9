"""CrossNetwork: explicit feature crosses of bounded degree."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.scaled_linear import scaled_linear

# B = batch, D = width of the input, R = rank


class CrossNetwork(nn.Module):
    """Explicit feature crosses: `x_(l+1) = x_0 * (W_l x_l + b_l) + x_l`, with `*` elementwise.

    After L layers the output is a polynomial of degree L + 1 in the input, so it outgrows float16 where the input is
    harmless. The state `x_l` and the elementwise products are therefore float32 under any precision, and only the
    matrix products run in half precision, on rows scaled by a power of two.

    Args:
        width: D, columns of the input and of the output.
        layers: L; 0 gives the input back.
        rank: Write `W` as `U V^T` with this inner width R, to save work where R is well below D / 2; `None` keeps
            the full matrix.

    Raises:
        ConfigurationError: `layers` is negative or `rank` is below 1.

    Example:
        >>> CrossNetwork(8, layers=2, rank=2)(torch.ones(3, 8)).shape
        torch.Size([3, 8])

    Source:
        Wang et al., DCN V2, WWW 2021, equations 1 and 2; arXiv:2008.13535.
    """

    def __init__(self, width: int, *, layers: int = 2, rank: int | None = None) -> None:
        super().__init__()
        if layers < 0:
            raise ConfigurationError(f"`cross_layers` must not be negative, got {layers}", "start with 2")
        if rank is not None and rank < 1:
            raise ConfigurationError(f"`rank` must be at least 1, got {rank}", "leave it out for full matrices")
        self.width = width
        self.layers = nn.ModuleList(_CrossLayer(width, rank) for _ in range(layers))

    @override
    def forward(self, x_BD: Tensor) -> Tensor:
        """Cross `x_BD`, (B, D) float32.

        Returns:
            Shape (B, D), float32.
        """
        crossed_BD = x_BD
        for layer in self.layers:
            crossed_BD = layer(x_BD, crossed_BD)
        return crossed_BD


class _CrossLayer(nn.Module):
    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        inner = width if rank is None else rank
        self.down = None if rank is None else nn.Linear(width, inner, bias=False)  # V^T
        self.up = nn.Linear(inner, width, bias=False)  # W, or U
        self.bias = nn.Parameter(torch.zeros(width))

    @override
    def forward(self, first_BD: Tensor, x_BD: Tensor) -> Tensor:
        x_BR = x_BD if self.down is None else scaled_linear(self.down, x_BD)
        return first_BD * (scaled_linear(self.up, x_BR) + self.bias) + x_BD
