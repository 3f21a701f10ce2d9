"""Negatives drawn anew each step, from the seed and the step alone."""

from __future__ import annotations

import torch
from torch import Tensor

_STEP = 1_000_003  # a prime, so that neighbouring seeds do not share draws over any run's steps


def drawn_items(rows: int, count: int, *, size: int, seed: int, step: int, place: int = 0) -> Tensor:
    """Vocabulary rows from 1 on, (rows, count) int64, uniform; the same whenever seed, step and place are.

    A resumed run draws what the run would have drawn, and nothing is taken from the global generator.

    Args:
        rows: Sequences of the batch.
        count: Draws for each.
        size: Rows of the vocabulary, the unknown row 0 included; at least 2.
        seed: Of the draws.
        step: Counted over the whole run.
        place: Of the process among those that train.
    """
    generator = torch.Generator().manual_seed((seed * _STEP + step) * 4099 + place)
    return torch.randint(1, size, (rows, count), generator=generator)
