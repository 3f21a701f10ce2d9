"""Vectors of a store's items, those that training did not know filled in from their likes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_mp.data.item_catalogue import ItemCatalogue
from lightning_mp.networks.cold_items import cold_item_vectors


def cold_vectors(vectors: Tensor, catalogue: ItemCatalogue, cold_start: Sequence[str]) -> Tensor:
    """The vectors, (C, E), where an item that training did not know has the mean of its likes.

    Args:
        vectors: Of all items of the catalogue, (C, E).
        catalogue: Of a store.
        cold_start: Categorical features of the items, from the narrowest on; without one nothing is filled in.

    Raises:
        ConfigurationError: A name is no categorical feature of the items.
    """
    if not cold_start:
        return vectors
    likeness = torch.from_numpy(catalogue.likeness(cold_start)).to(vectors.device)
    return cold_item_vectors(vectors, torch.from_numpy(catalogue.row > 0).to(vectors.device), likeness)
