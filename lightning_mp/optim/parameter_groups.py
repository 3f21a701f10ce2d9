"""Parameter groups that keep weight decay off embeddings, biases and normalisations."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.nn import Parameter

from lightning_mp.errors import ConfigurationError


def parameter_groups(module: nn.Module, *, weight_decay: float = 1e-4) -> list[dict[str, Any]]:
    """Groups for an optimizer: weight decay on the matrices that are multiplied by, and on nothing else.

    Decay pulls every row of an embedding towards zero in each step, also rows of items that no batch has; a bias or
    the scale of a normalisation has nothing to be kept small for. So parameters of `nn.Embedding` and
    `nn.EmbeddingBag`, and all of at most one dimension, get none. A weight that an embedding shares with another
    layer counts as the embedding's. Parameters that need no gradient are left out.

    Args:
        module: The module whose parameters are trained.
        weight_decay: Decay of the first group, 0 or more.

    Returns:
        At most two groups, in the order of `module.parameters()`: with decay, and without; an empty one is left out.

    Raises:
        ConfigurationError: `weight_decay` is negative or not finite.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
        >>> groups = parameter_groups(net)
        >>> [(group["weight_decay"], len(group["params"])) for group in groups]
        [(0.0001, 2), (0.0, 5)]
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3)
    """
    if not 0 <= weight_decay < math.inf:
        raise ConfigurationError(f"`weight_decay` must be 0 or more, got {weight_decay!r}", "use 1e-4")
    tables = {
        id(parameter)
        for inner in module.modules()
        if isinstance(inner, nn.Embedding | nn.EmbeddingBag)
        for parameter in inner.parameters(recurse=False)
    }
    decayed: list[Parameter] = []
    kept: list[Parameter] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (kept if parameter.ndim <= 1 or id(parameter) in tables else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
