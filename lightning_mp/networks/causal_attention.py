"""CausalAttention: each position looks at itself and at what came before."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from lightning_mp.errors import ConfigurationError

# B = batch, L = length of a history, E = width, H = heads


class CausalAttention(nn.Module):
    """Self-attention in which each position looks at itself and at the known positions before it.

    The mask is boolean: no number has to stand for minus infinity, and a position always sees itself, so that no row
    of the softmax is empty. The softmax sums in float32 in any precision.

    Args:
        width: E, of the input and the output.
        heads: H; must divide E.
        dropout: Share of attention weights dropped in training, in [0, 1).

    Raises:
        ConfigurationError: `heads` does not divide `width`.

    Example:
        >>> x = torch.ones(2, 3, 8)
        >>> CausalAttention(8, heads=2)(x, torch.ones(2, 3, dtype=torch.bool)).shape
        torch.Size([2, 3, 8])

    Source:
        Vaswani et al., Attention Is All You Need, NeurIPS 2017, equation 1, without the last projection as in SASRec.
    """

    def __init__(self, width: int, *, heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ConfigurationError(f"`heads` must divide the width of {width}, got {heads}", "start with 1")
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    @override
    def forward(self, x_BLE: Tensor, known_BL: Tensor) -> Tensor:
        """Attend within `x_BLE`, (B, L, E), where `known_BL`, (B, L) bool, says what is no padding.

        Returns:
            Shape (B, L, E), in the dtype the layers compute in.
        """
        x_BLE = x_BLE.to(self.query.weight.dtype)
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x_BLE), self.key(x_BLE), self.value(x_BLE))
        )
        places_L = torch.arange(x_BLE.shape[1], device=x_BLE.device)
        earlier_LL, itself_LL = (
            places_L.unsqueeze(0) <= places_L.unsqueeze(1),
            places_L.unsqueeze(0) == places_L.unsqueeze(1),
        )
        seen_B1LL = ((earlier_LL & known_BL.unsqueeze(1)) | itself_LL).unsqueeze(1)
        dropout = self.dropout if self.training else 0.0
        mixed_BHLE = scaled_dot_product_attention(query, key, value, attn_mask=seen_B1LL, dropout_p=dropout)
        return mixed_BHLE.transpose(1, 2).flatten(2)
