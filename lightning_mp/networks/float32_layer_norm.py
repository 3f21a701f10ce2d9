"""Float32LayerNorm: layer normalisation in float32 whatever the precision of the run."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import layer_norm
from typing_extensions import override

from lightning_mp.networks.scaled_linear import widened


class Float32LayerNorm(nn.LayerNorm):
    """Layer normalisation in float32 whatever the precision of the run.

    Autocast does so on a GPU only; on a CPU a float16 input would have its squares summed in float16.

    Example:
        >>> import torch
        >>> Float32LayerNorm(4)(torch.full((2, 4), 6e4, dtype=torch.float16)).dtype
        torch.float32
    """

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last axis; float32, or float64 for float64."""
        weight = None if self.weight is None else widened(self.weight)
        bias = None if self.bias is None else widened(self.bias)
        return layer_norm(widened(input), self.normalized_shape, weight, bias, self.eps)
