"""A store's items as batches of a network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from lightning_mp.data.item_catalogue import ItemCatalogue
from lightning_mp.networks.batch_lists import batch_lists

_ROWS: Final = 8192


def catalogue_batches(catalogue: ItemCatalogue, device: torch.device) -> Iterator[dict[str, Tensor]]:
    """`ids`, `multi` and `dense` of the items, as far as the schema has them, some thousands at a time.

    Args:
        catalogue: Of a store.
        device: Of the network.
    """
    widths = [feature.width for feature in catalogue.schema.of_kind("multi_categorical")]
    for first in range(0, len(catalogue), _ROWS):
        rows = slice(first, first + _ROWS)
        batch = {"ids": torch.from_numpy(catalogue.ids[rows])}
        if widths:
            batch["multi"] = batch_lists(torch.from_numpy(catalogue.multi[rows]), widths)
        if catalogue.dense.shape[1]:
            batch["dense"] = torch.from_numpy(catalogue.dense[rows])
        yield {name: tensor.to(device) for name, tensor in batch.items()}
