"""MemberLinear: one matrix for all members of an ensemble, with factors of each member's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from lightning_mp.networks.scaled_linear import widened

# B = batch, K = members, D = width of the input, H = width of the output


class MemberLinear(nn.Linear):
    """One matrix for all members of an ensemble: member k computes `s_k * (W (r_k * x)) + b_k`.

    Factors and bias act in float32 under any precision, the product runs in the run's.

    Args:
        in_features: D, columns of the input.
        out_features: H, columns of the output.
        members: K.
        random_signs: Begin the input factors at random signs, so that members differ; else at 1.

    Example:
        >>> MemberLinear(4, 3, members=2)(torch.ones(5, 2, 4)).shape
        torch.Size([5, 2, 3])

    Source:
        Wen et al., BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning, ICLR 2020,
        equation 5.
    """

    def __init__(self, in_features: int, out_features: int, *, members: int, random_signs: bool = False) -> None:
        super().__init__(in_features, out_features)
        assert self.bias is not None
        self.bias = nn.Parameter(self.bias.detach().repeat(members, 1))
        signs = torch.randint(0, 2, (members, in_features)).float() * 2 - 1
        self.input_factors = nn.Parameter(signs if random_signs else torch.ones(members, in_features))
        self.output_factors = nn.Parameter(torch.ones(members, out_features))

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Apply it to `input`, (B, K, D).

        Returns:
            Shape (B, K, H), float32.
        """
        scaled_BKD = (widened(input) * widened(self.input_factors)).to(self.weight.dtype)
        product_BKH = widened(linear(scaled_BKD, self.weight))
        return product_BKH * widened(self.output_factors) + widened(self.bias)
