"""Logits of a softmax whose negatives are the other items of the batch, corrected for how often items come up."""

from __future__ import annotations

import torch
from torch import Tensor

# B = rows of the batch, C = candidates: the batch's items and cached ones, E = width of the vectors


def in_batch_logits(
    users_BE: Tensor,
    items_CE: Tensor,
    *,
    own_B: Tensor,
    candidates_C: Tensor,
    temperature: float = 1.0,
    log_q_C: Tensor | None = None,
) -> Tensor:
    """Logits of all candidates for each row, (B, C) float32; row i's own item is candidate i.

    A candidate that is the row's own item once more is no negative (an accidental hit): its logit is minus infinity,
    which no other choice of a constant does without a trace. Popular items come up as negatives more often than others,
    so a softmax over a batch pushes them down; subtracting the logarithm of a candidate's share of the rows makes up
    for it (logQ), and the logits learn the chance of the item given the user.

    Args:
        users_BE: Vectors of the rows' users.
        items_CE: Vectors of the candidates, those of the rows first.
        own_B: Vocabulary row of each row's own item.
        candidates_C: Vocabulary row of each candidate.
        temperature: What products are divided by.
        log_q_C: Logarithm of each candidate's share; `None` for no correction.

    Source:
        Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations, RecSys 2019, eq. 3.
    """
    with torch.autocast(users_BE.device.type, enabled=False):
        logits_BC = users_BE.float() @ items_CE.float().T / temperature
    if log_q_C is not None:
        logits_BC = logits_BC - log_q_C
    again_BC = own_B.unsqueeze(1) == candidates_C
    again_BC.fill_diagonal_(False)
    return logits_BC.masked_fill(again_BC, float("-inf"))
