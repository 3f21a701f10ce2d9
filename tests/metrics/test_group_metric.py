"""What the per-user metrics have in common; their values are tested beside each."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.group_auc import GroupAUC
from lightning_mp.metrics.mrr import MRR
from lightning_mp.metrics.ndcg import NDCG
from lightning_mp.metrics.ranked_groups import RankedGroups
from lightning_mp.metrics.recall import Recall

METRICS = {
    "group_auc": GroupAUC,
    "group_auc_equal": lambda: GroupAUC(weight="equal"),
    "ndcg": lambda: NDCG(3),
    "ndcg_all": lambda: NDCG(None),
    "recall": lambda: Recall(3),
    "mrr": MRR,
    "mrr_k": lambda: MRR(3),
}
each = pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)


def rows(count=600, groups=40, dtype=torch.float32):
    scores = torch.randn(count).mul(2).round(decimals=1).to(dtype)  # many ties
    targets = torch.bernoulli(torch.full((count,), 0.3))
    targets[:2] = torch.tensor([0.0, 1.0])
    users = torch.randint(-(2**40), 2**40, (groups,))[torch.randint(groups, (count,))]
    users[:2] = users[0]  # one group has both classes at least
    return scores, targets, users


def measured(metric, scores, targets, users, size=None):
    size = size or max(1, len(scores))
    for start in range(0, len(scores), size):
        part = slice(start, start + size)
        metric.update(scores[part], targets[part], users[part])
    return metric


@each
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_neither_batch_size_nor_order_changes_a_bit(make, dtype):
    scores, targets, users = rows(dtype=dtype)
    metric = measured(make(), scores, targets, users)
    value, counted = metric.compute(), metric.counted
    assert value.dtype == torch.float32
    assert 0 <= value <= 1
    assert counted > 0
    for size in (1, 7, 64):
        shuffled = torch.randperm(len(scores))
        again = measured(make(), scores[shuffled], targets[shuffled], users[shuffled], size)
        assert again.compute() == value
        assert again.counted == counted


@each
def test_half_scores_are_what_their_float64_values_are(make):
    scores, targets, users = rows(dtype=torch.float16)
    half, wide = (measured(make(), s, targets, users).compute() for s in (scores, scores.double()))
    assert half == wide


@each
def test_any_stretching_of_the_scores_leaves_the_value(make):
    scores, targets, users = rows(dtype=torch.float64)
    values = {measured(make(), s, targets, users).compute().item() for s in (scores, scores.exp(), scores * 1e30 - 5)}
    assert len(values) == 1


@each
def test_infinite_scores_are_ordered(make):
    scores = torch.tensor([float("inf"), 0.0, float("-inf")])
    finite = torch.tensor([2.0, 1.0, 0.0])
    targets, users = torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64)
    values = [measured(make(), s, targets, users).compute() for s in (scores, finite)]
    assert values[0] == values[1]


@each
@pytest.mark.parametrize(
    ("scores", "targets", "reason"),
    [
        ([1.0, float("nan"), 3.0], [0, 1, 0], "1 of 3 scores are NaN"),
        ([1.0, 2.0, 3.0], [0, 1, float("nan")], "1 of 3 targets are "),
        ([1.0, 2.0, 3.0], [0, 1, -1], "1 of 3 targets are "),
        ([1.0, 2.0, 3.0], [0, 0, 0], " in any of 1 groups"),
        ([], [], "there are no rows"),
    ],
)
def test_what_is_undefined_is_nan_with_a_reason(make, scores, targets, reason):
    metric = make()
    users = torch.zeros(len(scores), dtype=torch.int64)
    metric.update(torch.tensor(scores), torch.tensor(targets), users)
    assert metric.compute().isnan()
    assert reason in metric.reason
    assert metric.counted == 0
    metric.reset()
    assert metric.reason is None
    metric.update(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]), torch.tensor([3, 3]))
    assert metric.compute() == 1
    assert (metric.reason, metric.counted) == (None, 1)


@each
def test_groups_without_a_value_are_left_out(make):
    scores, targets, users = rows()
    value = measured(make(), scores, targets, users).compute()
    lonely = torch.tensor([2**41, 2**41, 2**41 + 1])
    metric = measured(
        make(), torch.cat([scores, torch.randn(3)]), torch.cat([targets, torch.zeros(3)]), torch.cat([users, lonely])
    )
    assert metric.compute() == value
    assert metric.counted <= users.unique().numel()


@each
def test_ids_in_floating_point_and_shapes_that_differ_are_named(make):
    name = type(make()).__name__
    with pytest.raises(ConfigurationError, match=rf"{name} got groups of dtype torch.float32"):
        make().update(torch.zeros(2), torch.zeros(2), torch.zeros(2))
    with pytest.raises(ConfigurationError, match=rf"{name} got scores of shape \(3,\), targets of shape \(2,\)"):
        make().update(torch.zeros(3), torch.zeros(2), torch.zeros(3, dtype=torch.int64))


@each
def test_neighbouring_large_ids_stay_apart(make):
    users = torch.tensor([2**53, 2**53 + 1])
    metric = measured(make(), torch.tensor([1.0, 2.0]), torch.tensor([0, 1]), users)
    value = metric.compute()
    assert value.isnan() if isinstance(metric, GroupAUC) else metric.counted == 1


@each
def test_it_survives_copies_pickling_and_a_half_module(make):
    scores, targets, users = rows()
    metric = measured(make(), scores, targets, users)
    value = metric.compute()
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert twin.compute() == value
    module = torch.nn.Module()
    module.metric = make()
    module.to(torch.float16)
    close = 1 + torch.arange(300) / 2**20  # one value in float16
    module.metric.update(close, (torch.arange(300) >= 299).long(), torch.zeros(300, dtype=torch.int64))
    assert module.metric.compute() == 1


@pytest.mark.parametrize("make", [NDCG, Recall, MRR])
def test_a_list_of_no_rows_is_refused(make):
    with pytest.raises(ConfigurationError, match="`k` must be at least 1, got 0"):
        make(0)


def test_ranked_rows_know_their_group_place_and_block():
    scores, targets, users = rows(200, 9)
    ranked = RankedGroups.of(scores, targets, users)
    expected = sorted(zip(users.tolist(), (-scores).tolist(), (-targets).tolist(), strict=True))
    names = sorted(set(users.tolist()))
    place: dict[int, int] = {}
    for row, (user, _, minus_target) in enumerate(expected):
        place[user] = place.get(user, -1) + 1
        assert names[ranked.group[row]] == user
        assert ranked.rank[row] == place[user]
        assert ranked.targets[row] == -minus_target
        block = ranked.block[row]
        same = [i for i, other in enumerate(expected) if other[:2] == expected[row][:2]]
        assert ranked.block_size[block] == len(same)
        assert ranked.block_rank[block] == ranked.rank[same[0]]
        assert names[ranked.block_group[block]] == user
    assert ranked.group_size.tolist() == [users.tolist().count(name) for name in names]
