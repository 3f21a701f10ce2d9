"""AlignedLinear: a linear layer whose gradient is not slowed by an odd input width."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from typing_extensions import override

from lightning_mp.networks.scaled_linear import in_half_precision

# B = batch, D = width of the input, H = width of the output

_ALIGNED: Final = 16
"""Numbers of float32 in 64 bytes, a cache line."""


class AlignedLinear(nn.Linear):
    """A linear layer whose gradient is not slowed by an odd input width.

    On a CPU the product that gives the input's gradient takes almost twice as long where rows of the result begin in
    the middle of a cache line: 18 ms in place of 10 for a batch of 4096 with 429 columns to 256. So in float32 and in
    training the input and the weight get columns of zeros up to the next multiple of 16. In any other case, and by its
    parameters, this is the plain layer.

    Args:
        in_features: D, columns of the input.
        out_features: H, columns of the output.

    Example:
        >>> AlignedLinear(429, 2)(torch.ones(3, 429)).shape
        torch.Size([3, 2])
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Apply it to `input`, (B, D).

        Returns:
            Shape (B, H), in the dtype the layer computes in.
        """
        missing = -self.in_features % _ALIGNED
        trains = input.requires_grad and torch.is_grad_enabled() and input.device.type == "cpu"
        if missing and trains and not in_half_precision(self.weight) and not torch.compiler.is_compiling():
            return linear(pad(input, (0, missing)), pad(self.weight, (0, missing)), self.bias)
        return linear(input, self.weight, self.bias)
