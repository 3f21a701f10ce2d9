from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torchmetrics.retrieval import RetrievalRecall

from lightning_mp.metrics.recall import Recall


def over_all_orders(scores, targets, k):
    """Mean over every order of the rows that the scores allow, each order looked at."""
    values = [
        sum(targets[row] for row in order[:k]) / sum(targets)
        for order in itertools.permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean(values)


@pytest.mark.parametrize("k", [1, 2, 4, 50])
@pytest.mark.parametrize("levels", [1, 2, 3, 100])
def test_it_is_the_mean_over_all_orders_of_the_ties(k, levels):
    lists, expected = [], []
    for user in range(12):
        size = int(torch.randint(1, 7, ()))
        scores, targets = torch.randint(levels, (size,)).double(), torch.randint(2, (size,))
        targets[0] = 1
        lists.append((scores, targets, torch.full((size,), user)))
        expected.append(over_all_orders(scores.tolist(), targets.tolist(), k))
    metric = Recall(k)
    metric.update(*(torch.cat(column) for column in zip(*lists, strict=True)))
    assert metric.compute().item() == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize("k", [3, 10])
def test_without_ties_torchmetrics_agrees(k):
    scores, users = torch.randperm(400) / 400, torch.randint(20, (400,))
    targets = torch.randint(2, (400,))
    ours, theirs = Recall(k), RetrievalRecall(top_k=k, empty_target_action="skip")
    ours.update(scores, targets, users)
    theirs.update(scores, targets, indexes=users)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=1e-6)
