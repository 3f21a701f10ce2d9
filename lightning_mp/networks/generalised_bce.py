"""gBCE: binary cross-entropy over sampled negatives whose answers can be trusted as chances."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

# P = positives, N = negatives of each


def generalised_bce(logits_PN: Tensor, *, items: int, calibration: float = 0.75) -> Tensor:
    """Binary cross-entropy of each positive and its negatives, corrected for how few items were drawn.

    Where few of many items serve as negatives, plain cross-entropy learns chances that are far too high and cannot tell
    the best items apart. The positive's chance is raised to a power beta below 1, found from the share of items drawn.

    Args:
        logits_PN: (P, 1 + N), the positive first; minus infinity is no negative.
        items: That the negatives were drawn from.
        calibration: t in [0, 1]: 0 is plain cross-entropy, 1 answers calibrated chances.

    Returns:
        (P,) float32.

    Source:
        Petrov and Macdonald, gSASRec: Reducing Overconfidence in Sequential Recommendation Trained with Negative
        Sampling, RecSys 2023, equations 6 and 16.
    """
    wide_PN = logits_PN.float()
    beta = power(negatives=wide_PN.shape[1] - 1, items=items, calibration=calibration)
    # -log sigmoid(s)^beta = beta * softplus(-s): no power of a chance is formed.
    own_P = beta * softplus(-wide_PN[:, 0])
    return (own_P + softplus(wide_PN[:, 1:]).sum(dim=1)) / wide_PN.shape[1]


def power(*, negatives: int, items: int, calibration: float) -> float:
    """Beta of `generalised_bce`.

    Example:
        >>> power(negatives=10, items=100, calibration=0.0), round(power(negatives=10, items=100, calibration=1.0), 6)
        (1.0, 0.1)
    """
    share = min(negatives / items, 1.0)
    return share * (calibration * (1 - 1 / share) + 1 / share)
