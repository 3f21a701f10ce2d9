from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.auc import AUC


def area(scores: Tensor, targets: Tensor) -> float:
    """Every pair looked at, in float64."""
    scores, targets = scores.double().numpy(), targets.double().numpy()
    won = [(p > n) + 0.5 * (p == n) for p in scores[targets == 1] for n in scores[targets == 0]]
    return float(np.mean(won))


def measured(scores: Tensor, targets: Tensor, batch_size: int | None = None) -> AUC:
    metric = AUC()
    size = batch_size or len(scores)
    for start in range(0, len(scores), size):
        metric.update(scores[start : start + size], targets[start : start + size])
    return metric


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.01, 1.0, 40.0])
def test_every_pair_is_counted_in_every_dtype(dtype, spread):
    scores = (torch.randn(300, dtype=torch.float64) * spread).to(dtype)
    targets = torch.bernoulli(torch.full((300,), 0.3))
    targets[:2] = torch.tensor([0.0, 1.0])
    value = measured(scores, targets).compute()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(area(scores, targets), abs=1e-7)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
@settings(deadline=None, max_examples=100)
def test_ties_count_one_half(rows):
    scores = torch.tensor([float(score) for score, _ in rows])
    targets = torch.tensor([float(target) for _, target in rows])
    value = measured(scores, targets).compute().item()
    if targets.unique().numel() == 2:
        assert value == pytest.approx(area(scores, targets), abs=1e-7)
    else:
        assert np.isnan(value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_evaluation_batch_size_does_not_matter(dtype):
    scores, targets = torch.rand(1000).to(dtype), torch.randint(2, (1000,))
    values = {measured(scores, targets, size).compute().item() for size in (1, 7, 64, 1000)}
    assert len(values) == 1


def test_logits_beyond_a_float32_sigmoid_keep_their_order():
    # sigmoid(30) and sigmoid(40) are both 1.0 in float32
    assert measured(torch.tensor([40.0, 30.0]), torch.tensor([1, 0])).compute() == 1.0


def test_infinite_scores_are_ordered():
    scores = torch.tensor([float("inf"), 0.0, float("-inf"), float("inf")])
    assert measured(scores, torch.tensor([1, 1, 0, 0])).compute() == 0.625


@pytest.mark.parametrize(
    ("scores", "targets", "reason"),
    [
        ([1.0, 2.0], [1, 1], "all 2 targets are 1"),
        ([1.0, 2.0, 3.0], [0, 0, 0], "all 3 targets are 0"),
        ([1.0, float("nan"), 3.0], [0, 1, 0], "1 of 3 scores are NaN"),
        ([1.0, 2.0], [0.0, 0.5], "1 of 2 targets are neither 0 nor 1"),
        ([1.0, 2.0], [0.0, float("nan")], "1 of 2 targets are neither 0 nor 1"),
        ([], [], "there are no rows"),
    ],
)
def test_what_is_undefined_is_nan_with_a_reason(scores, targets, reason):
    metric = measured(torch.tensor(scores), torch.tensor(targets), 1)
    if not scores:
        metric.update(torch.tensor([]), torch.tensor([]))
    assert metric.compute().isnan()
    assert metric.reason == reason
    metric.reset()
    assert metric.reason is None
    metric.update(torch.tensor([0.0, 1.0]), torch.tensor([0, 1]))
    assert metric.compute() == 1.0
    assert metric.reason is None


def test_shapes_that_differ_are_named():
    with pytest.raises(ConfigurationError, match=r"scores of shape \(3,\) and targets of shape \(2,\)"):
        AUC().update(torch.zeros(3), torch.zeros(2))


def test_it_survives_copies_pickling_and_a_half_module():
    metric = measured(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert twin.compute() == 1.0
    module = torch.nn.Module()
    module.auc = AUC()
    module.to(torch.float16)
    scores = 1 + torch.arange(4000) / 2**20  # one value in float16
    module.auc.update(scores, (torch.arange(4000) >= 2000).long())
    assert module.auc.compute() == 1.0


def _rank(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    rows = torch.load(f"{folder}/rows.pt")
    half = slice(0, 150) if rank == 0 else slice(150, None)
    value = measured(rows[0, half], rows[1, half], 64).compute()
    torch.save(value, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_count_all_pairs(tmp_path):
    rows = torch.stack([torch.randn(400).half().float(), torch.randint(2, (400,)).float()])
    torch.save(rows, tmp_path / "rows.pt")
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt").item() == pytest.approx(area(*rows), abs=1e-7)
