"""AUC against all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.data.rank_auc import rank_auc


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.uint8])
def test_auc_is_the_share_of_pairs_in_the_right_order(dtype):
    draw = np.random.default_rng()
    labels = draw.random(300) < 0.3
    labels[:2] = True, False
    scores = draw.integers(0, 40, 300).astype(dtype)
    above, below = scores[labels][:, None], scores[~labels]
    pairs = (above > below).sum() + (above == below).sum() / 2
    assert rank_auc(labels, scores) == pairs / (labels.sum() * (~labels).sum())
    assert rank_auc(np.ones(3, dtype=bool), scores[:3]) is None
