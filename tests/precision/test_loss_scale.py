from __future__ import annotations

import math
import random

import pytest
import torch

from lightning_mp.precision.bounded_grad_scaler import BoundedGradScaler
from lightning_mp.precision.loss_scale import LossScaleHistory, ScalerSettings


def kernel(overflows: list[bool], scale: float, interval: int) -> list[float]:
    """Scales by torch's own kernel."""
    now, tracker = torch.tensor(scale), torch.tensor(0, dtype=torch.int32)
    scales = []
    for overflow in overflows:
        torch._amp_update_scale_(now, tracker, torch.tensor(float(overflow)), 2.0, 0.5, interval)
        scales.append(now.item())
    return scales


@pytest.mark.parametrize("scale", [2.0**16, 2.0**126, 2.0**-120])
def test_the_copy_of_the_scale_equals_torchs_kernel(scale):
    overflows = [random.random() < 0.2 for _ in range(300)]
    history, settings = LossScaleHistory(scale=scale), ScalerSettings(growth_interval=3)
    copied = []
    for overflow in overflows:
        history.record(0, overflow, settings)
        copied.append(history.scale)
    assert copied == kernel(overflows, scale, 3)
    assert history.skipped == sum(overflows)


def test_the_copy_of_the_scale_waits_as_a_bounded_scaler_does():
    scaler = BoundedGradScaler("cpu", init_scale=64.0, growth_interval=2, retry_interval=6, max_scale=256.0)
    settings = ScalerSettings(growth_interval=2, retry_interval=6, floor=1.0, ceiling=256.0)
    history, weight = LossScaleHistory(scale=64.0), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1e-3)
    for _ in range(300):
        overflow = random.random() < 0.1
        weight.grad = None
        scaler.scale((weight * (math.inf if overflow else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        history.record(0, overflow, settings)
        assert history.scale == scaler.get_scale()


@pytest.mark.parametrize("period", [500, 1000, 1700])
def test_the_forecast_comes_true_in_torchs_kernel(period):
    settings, steps = ScalerSettings(), 6 * period
    overflows = [step % period == period - 1 for step in range(160 * period)]
    history = LossScaleHistory(scale=2.0**16)
    for overflow in overflows[:steps]:
        history.record(0, overflow, settings)
    forecast = history.forecast(1.0, settings)
    scales = kernel(overflows, 2.0**16, 2000)
    below = next(step for step, scale in enumerate(scales) if scale < 1.0) + 1
    destroyed = next(step for step, scale in enumerate(scales) if math.isinf(torch.tensor(scale).reciprocal())) + 1
    assert steps + forecast.steps_to_minimum == pytest.approx(below, rel=0.02)
    assert steps + forecast.steps_to_destruction == pytest.approx(destroyed, rel=0.02)
    assert forecast.skip_rate == pytest.approx(1 / period, rel=0.01)


def test_no_forecast_while_growth_makes_up_for_the_skips():
    settings = ScalerSettings(growth_interval=50)
    history = LossScaleHistory(scale=2.0**16)
    for step in range(5000):
        history.record(0, step % 100 == 99, settings)
        assert history.forecast(1.0, settings) is None


def test_the_search_for_a_first_scale_is_no_sign_of_falling():
    settings, history = ScalerSettings(), LossScaleHistory(scale=2.0**30)
    for step in range(1000):
        history.record(0, step < 14, settings)
    assert history.forecast(1.0, settings) is None
    assert history.window_skips == 0


def test_no_forecast_under_a_floor():
    settings, history = ScalerSettings(floor=1.0), LossScaleHistory(scale=16.0)
    for step in range(100):
        history.record(0, step % 5 == 4, settings)
    assert history.scale == 1.0
    assert history.forecast(1.0, settings) is None


@pytest.mark.parametrize(
    ("scale", "dead"), [(1.0, False), (2.0**-127, False), (2.0**-128, True), (0.0, True), (math.inf, True)]
)
def test_dead_is_what_turns_a_finite_gradient_into_nan(scale, dead):
    reciprocal = torch.tensor(scale, dtype=torch.float32).double().reciprocal().float()
    assert LossScaleHistory(scale=scale).is_dead is dead
    assert dead == (math.isinf(reciprocal) or math.isinf(scale))


def test_consecutive_skips_are_counted_by_optimizer():
    history = LossScaleHistory()
    for optimizer, skipped in [(0, True), (1, False), (0, True), (1, True), (0, False)]:
        history.record(optimizer, skipped, ScalerSettings())
    assert history.consecutive == {0: 0, 1: 1}
    assert (history.longest_consecutive, history.skip_rate) == (1, 0.6)
