"""How large the values of a batch are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

_MOST_TENSORS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Of one floating tensor of a batch.

    Args:
        name: Its place, such as `batch['dense']`.
        largest: Largest size of a finite value; 0 where there is none.
        finite: Whether all values are.
    """

    name: str
    largest: float
    finite: bool


@torch.no_grad()
def batch_ranges(batch: Any) -> tuple[BatchRange, ...]:
    """Ranges of the floating tensors of a batch; one read from the device for each.

    Args:
        batch: Any nesting of tensors; the first 32 floating ones with a value are looked at.

    Returns:
        In the order of the batch.

    Example:
        >>> batch_ranges({"dense": torch.tensor([1.0, -3.0]), "ids": torch.tensor([5])})
        (BatchRange(name="batch['dense']", largest=3.0, finite=True),)
    """
    found: list[BatchRange] = []
    for path, leaf in tree_flatten_with_path(batch)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() and len(found) < _MOST_TENSORS:
            values = (leaf.coalesce().values() if leaf.is_sparse else leaf).float()
            largest = float(values.abs().amax()) if values.numel() else 0.0
            finite = math.isfinite(largest)
            if not finite:
                largest = float(values.nan_to_num(0.0, 0.0, 0.0).abs().amax())
            found.append(BatchRange(name=f"batch{keystr(path)}", largest=largest, finite=finite))
    return tuple(found)
