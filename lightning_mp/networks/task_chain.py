"""The chain of a funnel: from the chance of each step after the one before to the chance of having come so far."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def chain_logits(logits: Tensor) -> Tensor:
    """Logits of having come as far as each step, from the logit of each step given the one before.

    The chance of an order is that of a click, times that of a cart after a click, times that of an order after a cart.
    Everything is done on logarithms in float32: neither a product of small chances nor one minus a chance near 1 is
    ever formed, so both loss and gradient stay exact however large the logits are.

    Args:
        logits: (B, T), columns in the order of the funnel.

    Returns:
        (B, T) float32; its sigmoid is the chance of the step for the row itself.

    Example:
        >>> torch.sigmoid(chain_logits(torch.tensor([[0.0, 0.0, 0.0]])))
        tensor([[0.5000, 0.2500, 0.1250]])

    Source:
        Ma et al., Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click Conversion Rate,
        SIGIR 2018, section 2.2.
    """
    wide = logits.float()
    happened = logsigmoid(wide).cumsum(dim=1)
    # A row leaves the funnel at exactly one step: the chance of not coming so far is a sum, not a difference.
    left_at = logsigmoid(-wide)
    left = left_at[:, 0]
    steps = [left]
    for step in range(1, wide.shape[1]):
        left = _log_sum(left, happened[:, step - 1] + left_at[:, step])
        steps.append(left)
    return happened - torch.stack(steps, dim=1)


def _log_sum(a: Tensor, b: Tensor) -> Tensor:
    """`torch.logaddexp`, of operations that ONNX has."""
    return torch.maximum(a, b) + torch.log1p(torch.exp(-(a - b).abs()))
