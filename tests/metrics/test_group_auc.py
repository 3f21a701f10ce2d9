from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.auc import AUC
from lightning_mp.metrics.group_auc import GroupAUC


def area(scores, targets):
    """Every pair looked at, in float64."""
    won = [(p > n) + 0.5 * (p == n) for p in scores[targets == 1] for n in scores[targets == 0]]
    return np.mean(won) if won else None


def by_pairs(scores, targets, users, weight):
    values, weights = [], []
    for user in np.unique(users):
        mine = users == user
        value = area(scores[mine], targets[mine])
        if value is not None:
            values.append(value)
            weights.append(mine.sum() if weight == "rows" else 1)
    return np.average(values, weights=weights), len(values)


@pytest.mark.parametrize("weight", ["rows", "equal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_pair_inside_a_user_is_counted(weight, dtype):
    scores = torch.randn(500, dtype=torch.float64).round(decimals=1).to(dtype)
    targets, users = torch.randint(2, (500,)), torch.randint(60, (500,))
    targets[:2], users[:2] = torch.tensor([0, 1]), 99
    metric = GroupAUC(weight=weight)
    metric.update(scores, targets, users)
    value, counted = by_pairs(scores.double().numpy(), targets.numpy(), users.numpy(), weight)
    assert metric.compute().item() == pytest.approx(value, abs=1e-7)
    assert metric.counted == counted


def test_a_shift_of_all_scores_of_a_user_moves_the_auc_and_not_this():
    scores, targets = torch.tensor([1.0, 0.0, 11.0, 10.0, 9.0]), torch.tensor([1, 0, 1, 0, 0])
    users = torch.tensor([1, 1, 2, 2, 2])
    metric, plain = GroupAUC(), AUC()
    metric.update(scores, targets, users)
    plain.update(scores, targets)
    assert metric.compute() == 1
    assert plain.compute() < 1


def test_one_group_gives_the_auc():
    scores, targets = torch.randn(300), torch.randint(2, (300,))
    targets[:2] = torch.tensor([0, 1])
    metric, plain = GroupAUC(), AUC()
    metric.update(scores, targets, torch.full((300,), 4))
    plain.update(scores, targets)
    assert metric.compute() == plain.compute()


def test_another_weight_is_refused():
    with pytest.raises(ConfigurationError, match="`weight` must be 'rows' or 'equal', got 'clicks'"):
        GroupAUC(weight="clicks")
