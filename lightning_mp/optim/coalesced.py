"""A sparse gradient with each row once, without the wait of torch's own way on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def coalesced(gradient: Tensor) -> Tensor:
    """What `gradient.coalesce()` gives; of an embedding's gradient on a CPU, in a fifth of the time.

    Torch adds the values row by row. Here a sort of the rows and one sum over segments does it, in float32 for shorter
    formats, as torch does. A gradient of another form is left to torch.

    Args:
        gradient: A sparse COO tensor.

    Returns:
        The same tensor where it is coalesced already.

    Example:
        >>> table = torch.nn.Embedding(10, 2, sparse=True)
        >>> table(torch.tensor([7, 3, 7])).sum().backward()
        >>> coalesced(table.weight.grad).indices(), coalesced(table.weight.grad).values()
        (tensor([[3, 7]]), tensor([[1., 1.],
                [2., 2.]]))
    """
    values = gradient._values()  # noqa: SLF001  `values()` refuses one that is not coalesced
    plain = gradient.device.type == "cpu" and gradient.sparse_dim() == 1 and values.dim() == 2 and values.numel() > 0
    if gradient.is_coalesced() or not plain or not values.is_floating_point():
        return gradient.coalesce()
    rows = gradient._indices()[0]  # noqa: SLF001  as above
    ordered, places = torch.sort(rows.int() if gradient.shape[0] < 2**31 else rows)
    found, counts = torch.unique_consecutive(ordered, return_counts=True)
    wide = values if values.dtype in (torch.float32, torch.float64) else values.float()
    sums = embedding_bag(places, wide, counts.cumsum(0) - counts, mode="sum").to(values.dtype)
    return torch.sparse_coo_tensor(
        found.long().unsqueeze(0), sums, gradient.shape, is_coalesced=True, check_invariants=False
    )
