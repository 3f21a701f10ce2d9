"""Which tensors of a batch a module looks at."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def taken_inputs(module: nn.Module, sample: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Names of the tensors without which a module does not run, or answers otherwise; at least one.

    A graph demands every input that it declares, so what the module does not look at must not become one.

    Args:
        module: `forward(batch) -> logits`, in evaluation mode.
        sample: A batch of a few rows with all that there is.

    Example:
        >>> class Sum(nn.Module):
        ...     def forward(self, batch):
        ...         return batch["dense"].sum(dim=1)
        >>> taken_inputs(Sum(), {"ids": torch.ones(2, 1, dtype=torch.int64), "dense": torch.ones(2, 3)})
        ('dense',)
    """
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        whole, left = module(dict(sample)), dict(sample)
        for name in sample:  # one after the other: of two that stand in for each other one must stay
            rest = {other: tensor for other, tensor in left.items() if other != name}
            if rest and not _matters(module, rest, whole):
                left = rest
    return tuple(left)


def _matters(module: nn.Module, rest: Mapping[str, Tensor], whole: Tensor) -> bool:
    try:
        answer = module(dict(rest))
    except Exception:  # whatever a `forward` raises for what is not there
        return True
    return not torch.allclose(answer, whole, rtol=0.0, atol=0.0, equal_nan=True)
