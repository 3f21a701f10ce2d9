"""Tell from its values alone whether a float32 tensor came out of a shorter format."""

from __future__ import annotations

import torch
from torch import Tensor

# A float32 value is a float16 value by chance once in 2**13; four of them once in 2**52.
MEANINGFUL_VALUES = 4


def came_out_of(tensor: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """Whether every value of a float32 tensor is one of a shorter format, as after a cast from it.

    A gradient that was computed in float16 and cast to float32 afterwards shows it; one computed in
    float32 does not, unless its values are whole numbers or the like in any precision.

    Args:
        tensor: Any shape, float32, dense or sparse.
        dtype: The shorter format.

    Returns:
        () int8 on the tensor's device: 1 yes, 0 no, -1 where it cannot be told, because fewer than four values
        are finite and not zero.

    Example:
        >>> x = torch.linspace(0.1, 1.0, 50)
        >>> int(came_out_of(x)), int(came_out_of(x.half().float())), int(came_out_of(torch.zeros(50)))
        (0, 1, -1)
    """
    values = (tensor._values() if tensor.is_sparse else tensor).detach()  # noqa: SLF001 - `values()` wants it coalesced
    telling = torch.isfinite(values) & (values != 0)
    equal = torch.where(telling, values == values.to(dtype).float(), torch.tensor(True, device=values.device)).all()
    enough = telling.sum() >= MEANINGFUL_VALUES
    return torch.where(enough, equal.to(torch.int8), torch.tensor(-1, dtype=torch.int8, device=values.device))
