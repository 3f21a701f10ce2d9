"""Vectors of items that training did not know: the mean of known items that are like them."""

from __future__ import annotations

import torch
from torch import Tensor


def cold_item_vectors(vectors_CE: Tensor, known_C: Tensor, likeness_CN: Tensor) -> Tensor:
    """The vectors, those of unknown items replaced by the mean of the known ones that share a trait.

    Args:
        vectors_CE: Of all items.
        known_C: Which of them training knew.
        likeness_CN: Vocabulary rows of traits, from the narrowest on, such as brand, then category; 0 for unknown. The
            first trait that a known item shares decides; an item without one keeps its vector.

    Returns:
        (C, E), float32.

    Example:
        >>> vectors, known = torch.tensor([[2.0], [4.0], [9.0]]), torch.tensor([True, True, False])
        >>> cold_item_vectors(vectors, known, torch.tensor([[1], [1], [1]])).tolist()
        [[2.0], [4.0], [3.0]]
    """
    made = vectors_CE.float().clone()
    open_C = ~known_C
    for trait_C in likeness_CN.unbind(1):
        size = int(trait_C.max()) + 1
        sums = torch.zeros(size, made.shape[1], device=made.device)
        shared = known_C & (trait_C > 0)
        sums.index_add_(0, trait_C[shared], made[shared])
        counts = torch.bincount(trait_C[shared], minlength=size)
        filled = open_C & (trait_C > 0) & (counts[trait_C] > 0)
        made[filled] = sums[trait_C[filled]] / counts[trait_C[filled]].unsqueeze(1)
        open_C = open_C & ~filled
    return made
