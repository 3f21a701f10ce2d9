from __future__ import annotations

import copy
import math
import pickle
import random

import pytest
import torch

from lightning_mp.errors import ConfigurationError
from lightning_mp.precision.bounded_grad_scaler import BoundedGradScaler


def run(scaler: torch.amp.GradScaler, overflows: list[bool]) -> tuple[torch.Tensor, list[float]]:
    """Weights after the steps, and the scale after each."""
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1e-3)
    scales = []
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale((weight * (math.inf if overflow else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return weight.detach(), scales


def test_the_scale_is_that_of_the_stock_scaler_clamped_by_a_slow_oracle():
    overflows = [random.random() < 0.3 for _ in range(200)]
    _, scales = run(
        BoundedGradScaler("cpu", init_scale=8.0, growth_interval=2, min_scale=2.0, max_scale=64.0), overflows
    )
    scale, clean, wanted = 8.0, 0, []
    for overflow in overflows:
        if overflow:
            scale, clean = scale / 2, 0
        else:
            clean += 1
            if clean == 2:
                scale, clean = scale * 2, 0
        scale = min(max(scale, 2.0), 64.0)
        wanted.append(scale)
    assert scales == wanted
    assert {2.0, 64.0} & set(scales)


def test_after_an_overflow_it_waits_longer_by_a_slow_oracle_and_in_a_checkpoint():
    overflows = [random.random() < 0.1 for _ in range(300)]
    settings = {"init_scale": 256.0, "growth_interval": 2, "retry_interval": 7, "min_scale": 2.0, "max_scale": 2.0**20}
    _, scales = run(scaler := BoundedGradScaler("cpu", **settings), overflows)
    scale, left, wanted = 256.0, 2, []
    for overflow in overflows:
        left -= 1
        if overflow:
            scale, left = scale / 2, 7
        elif left == 0:
            scale, left = scale * 2, 2
        scale = min(max(scale, 2.0), 2.0**20)
        wanted.append(scale)
    assert scales == wanted
    run(scaler, [True, False, False])
    stock = torch.amp.GradScaler("cpu", growth_interval=2)
    stock.load_state_dict(scaler.state_dict())
    again = BoundedGradScaler("cpu", **settings)
    again.load_state_dict(stock.state_dict())
    assert run(again, [False] * 9)[1] == run(scaler, [False] * 9)[1]


def test_a_scale_that_grows_often_loses_few_steps_at_its_ceiling():
    def skipped(retry_interval):
        scaler = BoundedGradScaler("cpu", growth_interval=10, retry_interval=retry_interval)
        weight, steps = torch.ones(3, requires_grad=True), []
        optimizer = torch.optim.SGD([weight], 1e-3)
        optimizer.register_step_pre_hook(lambda *_: steps.append(1))
        for _ in range(400):
            optimizer.zero_grad()
            loss = weight.half().float().sum() * 0.25  # overflows in float16 from a scale of 2^18 on
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return 400 - len(steps)

    assert skipped(None) > 25
    assert skipped(100) <= 4


def test_the_slow_death_destroys_the_weights_of_the_stock_scaler_and_not_of_this_one():
    # One bad batch more often than the growth interval; intervals a hundredth of torch's, to be quick.
    overflows = [step % 10 == 9 for step in range(1600)]
    stock, stock_scales = run(torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=20), overflows)
    ours, scales = run(BoundedGradScaler("cpu", init_scale=1024.0, growth_interval=20), overflows)
    assert stock_scales[-1] == 0.0
    assert not torch.isfinite(stock).any()
    assert min(scales) == 1.0
    assert torch.isfinite(ours).all()
    assert ours[0] == pytest.approx(1.0 - 1e-3 * 1440, abs=1e-3)


def test_state_loads_both_ways_and_keeps_its_own_interval():
    ours, stock = BoundedGradScaler("cpu", init_scale=512.0, growth_interval=7), torch.amp.GradScaler("cpu")
    run(ours, [True, False, False])
    assert ours.state_dict().keys() == stock.state_dict().keys()
    stock.load_state_dict(ours.state_dict())
    assert (stock.get_scale(), stock.state_dict()["_growth_tracker"]) == (256.0, 2)
    again = BoundedGradScaler("cpu", growth_interval=9)
    again.load_state_dict(stock.state_dict())
    assert (again.get_scale(), again.get_growth_interval(), again.state_dict()["_growth_tracker"]) == (256.0, 9, 2)


@pytest.mark.parametrize(("scale", "loaded"), [(0.0, 4.0), (2.0**40, 64.0), (math.inf, 4.0), (math.nan, 4.0)])
def test_a_dead_scale_is_not_loaded(scale, loaded):
    stock = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler = BoundedGradScaler("cpu", init_scale=8.0, min_scale=4.0, max_scale=64.0)
    scaler.load_state_dict({**stock.state_dict(), "scale": scale})
    assert scaler.get_scale() == loaded


def test_it_pickles_and_copies_with_its_bounds():
    scaler = BoundedGradScaler("cpu", init_scale=8.0, min_scale=4.0)
    run(scaler, [True])
    for other in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        _, scales = run(other, [True, True])
        assert scales == [4.0, 4.0]


def test_disabled_it_does_nothing():
    scaler = BoundedGradScaler("cpu", enabled=False)
    weight, scales = run(scaler, [False])
    scaler.load_state_dict({})
    assert scales == [1.0]
    assert torch.allclose(weight, torch.full((3,), 0.999))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"min_scale": 0.0}, "must be positive and in order, got 0.0 and 16777216.0"),
        ({"min_scale": 9.0, "max_scale": 8.0}, "must be positive and in order, got 9.0 and 8.0"),
        ({"max_scale": math.inf}, "got 1.0 and inf"),
        ({"init_scale": 0.5}, r"`init_scale` must lie in [1, 1.67772e+07], got 0.5"),
        ({"init_scale": math.nan}, "got nan"),
    ],
)
def test_wrong_bounds_are_named(arguments, text):
    with pytest.raises(ConfigurationError) as error:
        BoundedGradScaler("cpu", **arguments)
    assert text in str(error.value)
