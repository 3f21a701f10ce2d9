from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torchmetrics.classification import BinaryCalibrationError

from lightning_mp.errors import ConfigurationError
from lightning_mp.metrics.calibration_error import CalibrationError


def measured(metric, scores, targets, size=None):
    size = size or max(1, len(scores))
    for start in range(0, len(scores), size):
        metric.update(scores[start : start + size], targets[start : start + size])
    return metric


def bin_by_bin(chance, targets, bins, index):
    """The definition, a bin at a time, in float64."""
    error = 0.0
    for i in range(bins):
        mine = index == i
        if mine.any():
            error += mine.mean() * abs(chance[mine].mean() - targets[mine].mean())
    return error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_bins_of_equal_width(dtype, bins):
    scores, targets = (torch.randn(500, dtype=torch.float64) * 3).to(dtype), torch.rand(500)
    chance = 1 / (1 + np.exp(-scores.double().numpy()))
    index = np.minimum((chance * bins).astype(int), bins - 1)
    value = measured(CalibrationError(bins), scores, targets).compute()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(bin_by_bin(chance, targets.double().numpy(), bins, index), abs=1e-6)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_bins_of_equal_mass_never_part_a_tie(bins):
    scores, targets = torch.rand(500).round(decimals=2), torch.randint(2, (500,))
    chance = scores.double().numpy()
    middle = np.array([(chance < p).mean() + (chance == p).mean() / 2 for p in chance])
    index = np.minimum((middle * bins + 1e-12).astype(int), bins - 1)
    metric = measured(CalibrationError(bins, binning="mass", from_logits=False), scores, targets)
    assert metric.compute().item() == pytest.approx(bin_by_bin(chance, targets.numpy(), bins, index), abs=1e-6)


def test_bins_of_equal_mass_see_what_one_wide_bin_hides():
    chance = torch.cat([torch.full((500,), 0.001), torch.full((500,), 0.03)])
    targets = torch.cat([torch.full((500,), 0.03), torch.full((500,), 0.001)])  # the wrong way round
    wide, mass = (measured(CalibrationError(binning=b, from_logits=False), chance, targets) for b in ("width", "mass"))
    assert wide.compute().item() == pytest.approx(0, abs=1e-9)
    assert mass.compute().item() == pytest.approx(0.029, abs=1e-6)


def test_torchmetrics_agrees_on_bins_of_equal_width():
    chance, targets = torch.rand(1000), torch.randint(2, (1000,))
    theirs = BinaryCalibrationError(n_bins=15, norm="l1")
    theirs.update(chance, targets)
    ours = measured(CalibrationError(from_logits=False), chance, targets)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), abs=1e-5)


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_neither_batch_size_nor_order_changes_a_bit(binning):
    scores, targets = torch.randn(1000).half(), torch.rand(1000)
    values = set()
    for size in (1, 7, 64, 1000):
        order = torch.randperm(1000)
        values.add(measured(CalibrationError(binning=binning), scores[order], targets[order], size).compute().item())
    assert len(values) == 1


@pytest.mark.parametrize(
    ("scores", "targets", "from_logits", "reason"),
    [
        ([1.0, float("nan")], [0, 1], True, "1 of 2 logits are not finite"),
        ([1.0, float("inf")], [0, 1], True, "1 of 2 logits are not finite"),
        ([1.0, 1.5], [0, 1], False, "1 of 2 probabilities are outside [0, 1]"),
        ([1.0, float("nan")], [0, 1], False, "1 of 2 probabilities are outside [0, 1]"),
        ([0.5, 0.5], [0, -1], False, "1 of 2 targets are outside [0, 1]"),
        ([0.5, 0.5], [0, float("nan")], False, "1 of 2 targets are outside [0, 1]"),
        ([], [], True, "there are no rows"),
    ],
)
def test_what_is_undefined_is_nan_with_a_reason(scores, targets, from_logits, reason):
    metric = CalibrationError(from_logits=from_logits)
    metric.update(torch.tensor(scores), torch.tensor(targets))
    assert metric.compute().isnan()
    assert metric.reason == reason
    metric.reset()
    metric.update(torch.tensor([0.0]), torch.tensor([1]))
    assert metric.compute() == (0.5 if from_logits else 1)
    assert metric.reason is None


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigurationError, match="`bins` must be at least 1, got 0"):
        CalibrationError(0)
    with pytest.raises(ConfigurationError, match="`binning` must be 'width' or 'mass', got 'kernel'"):
        CalibrationError(binning="kernel")
    with pytest.raises(ConfigurationError, match=r"scores of shape \(3,\) and targets of shape \(2,\)"):
        CalibrationError().update(torch.zeros(3), torch.zeros(2))


def test_it_survives_copies_and_pickling():
    metric = measured(CalibrationError(), torch.randn(50), torch.rand(50))
    value = metric.compute()
    for twin in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert twin.compute() == value
