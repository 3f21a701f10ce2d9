from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torchmetrics.retrieval import RetrievalMRR

from lightning_mp.metrics.mrr import MRR


def over_all_orders(scores, targets, k):
    """Mean over every order of the rows that the scores allow, each order looked at."""
    values = []
    for order in itertools.permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order)):
            first = next(place for place, row in enumerate(order, 1) if targets[row])
            values.append(1 / first if k is None or first <= k else 0)
    return np.mean(values)


@pytest.mark.parametrize("k", [1, 2, None])
@pytest.mark.parametrize("levels", [1, 2, 3, 100])
def test_it_is_the_mean_over_all_orders_of_the_ties(k, levels):
    lists, expected = [], []
    for user in range(12):
        size = int(torch.randint(1, 7, ()))
        scores, targets = torch.randint(levels, (size,)).double(), torch.randint(2, (size,))
        targets[0] = 1
        lists.append((scores, targets, torch.full((size,), user)))
        expected.append(over_all_orders(scores.tolist(), targets.tolist(), k))
    metric = MRR(k)
    metric.update(*(torch.cat(column) for column in zip(*lists, strict=True)))
    assert metric.compute().item() == pytest.approx(np.mean(expected), abs=1e-6)


def test_without_ties_torchmetrics_agrees():
    scores, users = torch.randperm(400) / 400, torch.randint(20, (400,))
    targets = torch.randint(2, (400,))
    ours, theirs = MRR(), RetrievalMRR(empty_target_action="skip")
    ours.update(scores, targets, users)
    theirs.update(scores, targets, indexes=users)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=1e-6)


def test_a_hundred_thousand_tied_rows_keep_their_precision():
    n, m = 100_000, int(torch.randint(1, 2000, ()))
    targets = (torch.randperm(n) < m).float()
    metric = MRR()
    metric.update(torch.zeros(n), targets, torch.zeros(n, dtype=torch.int64))
    chance, expected = m / n, 0.0
    for place in range(1, n - m + 2):
        expected += chance / place
        chance *= (n - place - m + 1) / (n - place)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)
