"""MemberHeads: a last layer for each member of an ensemble, in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.networks.scaled_linear import widened

# B = batch, K = members, H = width of the input


class MemberHeads(nn.Module):
    """A last layer for each member of an ensemble, in float32 whatever the precision of the run.

    Args:
        in_features: H, columns of the input.
        members: K.

    Example:
        >>> MemberHeads(4, members=2)(torch.ones(5, 2, 4)).shape
        torch.Size([5, 2])
    """

    def __init__(self, in_features: int, members: int) -> None:
        super().__init__()
        bound = in_features**-0.5
        self.members = members
        self.weight = nn.Parameter(torch.empty(members, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members).uniform_(-bound, bound))

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Logits of `input`, (B, K, H).

        Returns:
            Shape (B, K), float32.
        """
        return (widened(input) * widened(self.weight)).sum(dim=2) + widened(self.bias)
