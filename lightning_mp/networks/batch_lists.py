"""Lists of a store's rows as a batch holds them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad


def batch_lists(flat: Tensor, widths: Sequence[int]) -> Tensor:
    """Lists that lie side by side, one a feature, as `multi` of a batch.

    Args:
        flat: (B, sum of widths) vocabulary rows, each list padded with 0.
        widths: Of the M features.

    Returns:
        (B, M, L), the shorter lists padded with 0 to the longest.

    Example:
        >>> batch_lists(torch.tensor([[1, 2, 3]]), [1, 2]).tolist()
        [[[1, 0], [2, 3]]]
    """
    parts = torch.split(flat, list(widths), dim=1)
    return torch.stack([pad(part, (0, max(widths) - part.shape[1])) for part in parts], dim=1)
