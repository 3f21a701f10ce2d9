from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.calibration_ratio import CalibrationRatio


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_it_is_mean_over_mean_from_logits_and_from_probabilities(dtype):
    logits, targets = (torch.randn(700, dtype=torch.float64) * 4).to(dtype), torch.rand(700)
    chance = 1 / (1 + np.exp(-logits.double().numpy()))
    expected = chance.mean() / targets.double().numpy().mean()
    metric = CalibrationRatio()
    for start in range(0, 700, 64):
        metric.update(logits[start : start + 64], targets[start : start + 64])
    assert metric.compute().dtype == torch.float32
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)
    metric = CalibrationRatio(from_logits=False)
    metric.update(torch.from_numpy(chance), targets)
    assert metric.compute().item() == pytest.approx(expected, rel=1e-6)


def test_ten_million_small_rates_are_added_without_loss():
    metric = CalibrationRatio(from_logits=False)
    for _ in range(10):
        metric.update(torch.full((1_000_000,), 1e-3), torch.full((1_000_000,), 2e-3))
    assert metric.compute().item() == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("scores", "targets", "from_logits", "reason"),
    [
        ([1.0, float("nan")], [0, 1], True, "1 of 2 logits are not finite"),
        ([1.0, -0.5], [0, 1], False, "1 of 2 probabilities are outside [0, 1]"),
        ([0.5, 0.5], [1, 2], True, "1 of 2 targets are outside [0, 1]"),
        ([0.5, 0.5], [0, 0], True, "all 2 targets are 0"),
        ([], [], True, "there are no rows"),
    ],
)
def test_what_is_undefined_is_nan_with_a_reason(scores, targets, from_logits, reason):
    metric = CalibrationRatio(from_logits=from_logits)
    metric.update(torch.tensor(scores), torch.tensor(targets))
    assert metric.compute().isnan()
    assert metric.reason == reason
    metric.reset()
    assert metric.reason is None
    metric.update(torch.tensor([0.0]), torch.tensor([1.0]))
    assert metric.compute() == (0.5 if from_logits else 0)


def test_shapes_copies_and_half_modules():
    with pytest.raises(ConfigurationError, match=r"scores of shape \(3,\) and targets of shape \(2,\)"):
        CalibrationRatio().update(torch.zeros(3), torch.zeros(2))
    module = torch.nn.Module()
    module.ratio = CalibrationRatio(from_logits=False)
    module.to(torch.float16)
    for _ in range(3):
        module.ratio.update(torch.full((40_000,), 0.5), torch.full((40_000,), 0.25))
    for twin in (module.ratio, copy.deepcopy(module.ratio), pickle.loads(pickle.dumps(module.ratio))):
        assert twin.compute() == 2
