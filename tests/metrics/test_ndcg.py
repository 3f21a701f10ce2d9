from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torchmetrics.retrieval import RetrievalNormalizedDCG

from lightning_mp.metrics.ndcg import NDCG


def dcg(gains, k):
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains[:k]))


def over_all_orders(scores, targets, k):
    """Mean over every order of the rows that the scores allow, each order looked at."""
    values = [
        dcg([targets[row] for row in order], k)
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean(values) / dcg(sorted(targets, reverse=True), k)


@pytest.mark.parametrize("k", [1, 2, 4, None])
@pytest.mark.parametrize("levels", [1, 2, 3, 100])
def test_it_is_the_mean_over_all_orders_of_the_ties(k, levels):
    lists, expected = [], []
    for user in range(12):
        size = int(torch.randint(1, 7, ()))
        scores, targets = torch.randint(levels, (size,)).double(), torch.rand(size) * torch.randint(2, (size,))
        targets[0] = 0.5
        lists.append((scores, targets, torch.full((size,), user)))
        expected.append(over_all_orders(scores.tolist(), targets.tolist(), k))
    metric = NDCG(k)
    metric.update(*(torch.cat(column) for column in zip(*lists, strict=True)))
    assert metric.compute().item() == pytest.approx(np.mean(expected), abs=1e-6)
    assert metric.counted == 12


@pytest.mark.parametrize("k", [3, 10])
def test_without_ties_torchmetrics_agrees(k):
    scores, users = torch.randperm(400) / 400, torch.randint(20, (400,))
    targets = torch.randint(2, (400,))
    ours, theirs = NDCG(k), RetrievalNormalizedDCG(top_k=k, empty_target_action="skip")
    ours.update(scores, targets, users)
    theirs.update(scores, targets, indexes=users)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=1e-6)


def test_a_constant_score_earns_what_chance_does_however_the_rows_stand():
    targets = torch.tensor([1.0] * 5 + [0.0] * 95)
    users, flat = torch.zeros(100, dtype=torch.int64), torch.zeros(100)
    values = set()
    for order in (torch.arange(100), torch.arange(99, -1, -1), torch.randperm(100)):
        metric = NDCG(10)
        metric.update(flat, targets[order], users)
        values.add(metric.compute().item())
    assert len(values) == 1
    chance = 0.05 * sum(1 / math.log2(place + 2) for place in range(10)) / dcg([1] * 5, 10)
    assert values.pop() == pytest.approx(chance, abs=1e-6)
