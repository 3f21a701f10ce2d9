"""LogitHead: the last linear layer, in float32 whatever the precision of the run."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from lightning_mp.networks.scaled_linear import in_half_precision, widened


class LogitHead(nn.Linear):
    """The last linear layer, in float32 whatever the precision of the run.

    Under autocast the product is written out as multiply and add: autocast leaves those in float32, forward and
    backward. A nested `autocast(enabled=False)` would not do, since `torch.compile` runs its backward in half
    precision all the same. Without autocast it is the plain layer.

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
        x_BD, weight_TD, bias_T = widened(input), widened(self.weight), widened(self.bias)
        if in_half_precision(self.weight):
            return (x_BD.unsqueeze(1) * weight_TD).sum(dim=2) + bias_T
        return linear(x_BD, weight_TD, bias_T)
