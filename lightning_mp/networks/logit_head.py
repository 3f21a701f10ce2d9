"""LogitHead: the last linear layer, in float32 whatever the precision of the run."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.networks.float32_linear import float32_linear


class LogitHead(nn.Linear):
    """The last linear layer, in float32 whatever the precision of the run.

    It computes by `float32_linear`; without autocast it is the plain layer.

    Args:
        in_features: Columns of the input.
        out_features: Logits a row.

    Example:
        >>> import torch
        >>> with torch.autocast("cpu", dtype=torch.bfloat16):
        ...     LogitHead(4, 1)(torch.ones(3, 4)).dtype
        torch.float32
    """

    def __init__(self, in_features: int, out_features: int = 1) -> None:
        super().__init__(in_features, out_features)

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Logits of `input`, (B, D).

        Returns:
            Shape (B, `out_features`), float32.
        """
        return float32_linear(input, self.weight, self.bias)
