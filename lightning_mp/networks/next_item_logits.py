"""Logits of the target of each place of a sequence, and of its negatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# B = sequences, L = places, E = width, V = vocabulary, N = negatives, P = places with a target


def next_item_logits(
    states_BLE: Tensor, target: Tensor, vectors_VE: Tensor, drawn_BN: Tensor | None, *, correct: bool = False
) -> Tensor:
    """Logits of each place's target and its negatives, (P, 1 + N) float32, the target's first.

    A negative that is the target itself gets minus infinity. With `correct` a drawn negative stands for all that were
    not drawn: its logit is raised by the logarithm of items over draws, and a softmax over the draws estimates the one
    over all items.

    Args:
        states_BLE: State after each place, the latest last.
        target: (B, L) vocabulary rows, the last `states_BLE.shape[1]` of which count; (B,) for the last place alone; 0
            for none.
        vectors_VE: Of all items; row 0 is that of padding and unknown items.
        drawn_BN: Vocabulary rows of the negatives; `None` takes all items.
        correct: Whether the draws are corrected for their share.
    """
    if target.dim() == 1:
        states_BLE, target = states_BLE[:, -1:], target.unsqueeze(1)
    target_BL = target[:, -states_BLE.shape[1] :].long()
    with torch.autocast(states_BLE.device.type, enabled=False):
        states_BLE, vectors_VE = states_BLE.float(), vectors_VE.float()
        there_BL = target_BL > 0
        states_PE, target_P = states_BLE[there_BL], target_BL[there_BL]
        own_P1 = (states_PE * vectors_VE[target_P]).sum(dim=1, keepdim=True)
        if drawn_BN is None:
            others_PN = states_PE @ vectors_VE[1:].T
            again_PN = target_P.unsqueeze(1) == torch.arange(1, len(vectors_VE), device=target_P.device)
        else:
            drawn_BN = drawn_BN.to(target_BL.device).long()
            others_PN = torch.bmm(states_BLE, vectors_VE[drawn_BN].transpose(1, 2))[there_BL]
            again_PN = (target_BL.unsqueeze(2) == drawn_BN.unsqueeze(1))[there_BL]
            if correct:
                others_PN = others_PN + math.log((len(vectors_VE) - 1) / drawn_BN.shape[1])
        return torch.cat([own_P1, others_PN.masked_fill(again_PN, float("-inf"))], dim=1)
