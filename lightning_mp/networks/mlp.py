"""MLP: the plain deep part of a ranking network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.aligned_linear import AlignedLinear

# B = batch, D = width of the input, H = width of the last hidden layer


class MLP(nn.Module):
    """Linear layers with ReLU and dropout between; the last one has them too, so that a head follows.

    Args:
        width: D, columns of the input.
        hidden: Width of each layer; empty gives the input back.
        dropout: Share of activations dropped in training, in [0, 1).

    Raises:
        ConfigurationError: A width is below 1, or `dropout` is outside [0, 1).

    Example:
        >>> MLP(8, hidden=(16, 4))(torch.ones(3, 8)).shape
        torch.Size([3, 4])
    """

    def __init__(self, width: int, *, hidden: Sequence[int] = (256, 128), dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigurationError(f"`dropout` must be in [0, 1), got {dropout}", "start with 0.1")
        if any(size < 1 for size in hidden):
            raise ConfigurationError(f"`hidden` must hold widths of at least 1, got {list(hidden)}", "try [256, 128]")
        self.width_out = [width, *hidden][-1]
        self.layers = nn.ModuleList(AlignedLinear(a, b) for a, b in pairwise([width, *hidden]))
        self.dropout = nn.Dropout(dropout)

    @override
    def forward(self, x_BD: Tensor) -> Tensor:
        """Apply the layers to `x_BD`, (B, D).

        Returns:
            Shape (B, H), in the dtype the layers compute in.
        """
        if self.layers:
            x_BD = x_BD.to(next(self.parameters()).dtype)
        for layer in self.layers:
            x_BD = self.dropout(torch.relu(layer(x_BD)))
        return x_BD
