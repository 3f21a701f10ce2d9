from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.log_loss import LogLoss


def loss(logits, targets) -> float:
    """The formula as the books have it, in long doubles."""
    x, z = (np.asarray(v, dtype=np.longdouble) for v in (logits.double(), targets.double()))
    return float(np.mean(z * np.log1p(np.exp(-x)) + (1 - z) * np.log1p(np.exp(x))))


def measured(scores, targets, *, size=None, from_logits=True) -> LogLoss:
    metric = LogLoss(from_logits=from_logits)
    for start in range(0, len(scores), size or len(scores)):
        stop = start + (size or len(scores))
        metric.update(scores[start:stop], targets[start:stop])
    return metric


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.01, 1.0, 100.0])
def test_logits_of_every_dtype_give_the_formula(dtype, spread):
    logits = (torch.randn(500, dtype=torch.float64) * spread).to(dtype)
    targets = torch.rand(500)  # shares are targets too
    value = measured(logits, targets).compute()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(logits, targets), rel=2e-7)


def test_probabilities_and_their_logits_agree():
    logits, targets = torch.randn(500, dtype=torch.float64), torch.randint(2, (500,))
    by_probability = measured(torch.sigmoid(logits), targets, from_logits=False).compute()
    assert by_probability.item() == pytest.approx(loss(logits, targets), rel=2e-7)


def test_the_evaluation_batch_size_does_not_matter():
    logits, targets = torch.randn(20_000).half(), torch.randint(2, (20_000,))
    values = [measured(logits, targets, size=size).compute().item() for size in (1000, 4096, 20_000, 3)]
    assert values == pytest.approx([values[0]] * 4, rel=1.2e-7)


def test_a_half_sum_would_stop_at_65504_and_ours_does_not():
    module = torch.nn.Module()
    module.loss = LogLoss()
    module.to(torch.float16)
    for _ in range(100):
        module.loss.update(torch.full((1000,), 10.0).half(), torch.zeros(1000))
    assert module.loss.compute().item() == pytest.approx(10 + math.log1p(math.exp(-10)), rel=1e-6)


def test_impossible_and_happened_costs_infinity_certain_and_happened_nothing():
    assert measured(torch.tensor([0.0]), torch.tensor([1.0]), from_logits=False).compute() == math.inf
    assert measured(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]), from_logits=False).compute() == 0
    assert measured(torch.tensor([1e30]), torch.tensor([0.0])).compute().item() == pytest.approx(1e30)


@pytest.mark.parametrize("targets", [[0.0, 0.0], [1.0, 1.0]])
def test_targets_of_one_class_have_a_log_loss(targets):
    metric = measured(torch.tensor([0.3, -2.0]), torch.tensor(targets))
    assert metric.compute().item() == pytest.approx(loss(torch.tensor([0.3, -2.0]), torch.tensor(targets)), rel=1e-6)
    assert metric.reason is None


@pytest.mark.parametrize(
    ("scores", "targets", "from_logits", "reason"),
    [
        ([float("nan"), 1.0], [1.0, 0.0], True, "1 of 2 logits are not finite"),
        ([float("inf"), 1.0], [1.0, 0.0], True, "1 of 2 logits are not finite"),
        ([1.5, 0.5], [1.0, 0.0], False, "1 of 2 probabilities are outside [0, 1]"),
        ([float("nan"), 0.5], [1.0, 0.0], False, "1 of 2 probabilities are outside [0, 1]"),
        ([0.5, 0.5], [2.0, float("nan")], True, "2 of 2 targets are outside [0, 1]"),
        ([], [], True, "there are no rows"),
    ],
)
def test_what_is_undefined_is_nan_with_a_reason(scores, targets, from_logits, reason):
    metric = LogLoss(from_logits=from_logits)
    metric.update(torch.tensor(scores), torch.tensor(targets))
    assert metric.compute().isnan()
    assert metric.reason == reason
    metric.reset()
    metric.update(torch.tensor([0.5]), torch.tensor([1.0]))
    assert metric.compute().isfinite()
    assert metric.reason is None


def test_shapes_that_differ_are_named():
    with pytest.raises(ConfigurationError, match=r"scores of shape \(3, 1\) and targets of shape \(3,\)"):
        LogLoss().update(torch.zeros(3, 1), torch.zeros(3))


def test_states_of_two_processes_add_up():
    logits, targets = torch.randn(300), torch.rand(300)
    one, other = measured(logits[:100], targets[:100]), measured(logits[100:], targets[100:])
    assert all(reduction is torch.sum or reduction.__name__ == "dim_zero_sum" for reduction in one._reductions.values())
    one.merge_state(other)
    assert one.compute().item() == pytest.approx(loss(logits, targets), rel=2e-7)
