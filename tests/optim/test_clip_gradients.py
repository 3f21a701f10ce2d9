from __future__ import annotations

import copy
import math
import random

import pytest
import torch
from torch import nn

from lightning_mp.optim.clip_gradients import Clipped, clip_gradients

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Fresh ones with random gradients; the first has a sparse gradient whose rows occur more than once."""
    table = nn.Parameter(torch.randn(9, 3))
    rows = torch.randint(9, (1, 20))
    table.grad = torch.sparse_coo_tensor(rows, torch.randn(20, 3), table.shape)
    dense = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in [(4, 3), (7,), ()]]
    for parameter in dense:
        parameter.grad = torch.randn_like(parameter) * 10 ** random.uniform(-2, 2)
    return [table, *dense, nn.Parameter(torch.zeros(2))]


def in_float64(params: list[nn.Parameter]) -> list[list[float]]:
    """Dense gradients as plain Python numbers."""
    return [
        (p.grad.to_dense() if p.grad.is_sparse else p.grad).double().flatten().tolist()
        for p in params
        if p.grad is not None
    ]


def flat(gradients: list[list[float]]) -> list[float]:
    return [value for gradient in gradients for value in gradient]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scale", [None, 64.0])  # a larger one takes these float16 gradients beyond the largest float16
def test_the_norm_is_clipped_as_by_a_slow_oracle(dtype, scale):
    close = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-5)
    for max_norm in (0.5, 1e9):
        params = parameters(dtype)
        true = flat(in_float64(params))
        norm = math.sqrt(math.fsum(value * value for value in true))
        if scale:
            for p in params:
                p.grad = None if p.grad is None else p.grad * scale
        found = clip_gradients(params, max_norm=max_norm, scale=None if scale is None else torch.tensor(scale))
        factor = min(1.0, max_norm / (norm + 1e-6)) * (scale or 1.0)
        wanted = [value * factor for value in true]
        assert flat(in_float64(params)) == pytest.approx(wanted, rel=close, abs=2e-6 * (scale or 1.0))
        assert float(found.norm) == pytest.approx(norm, rel=close)
        assert bool(found.clipped) == (norm > max_norm)
        assert bool(found.finite)


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_elements_are_clipped_as_by_a_slow_oracle(scale):
    for max_value in (0.3, 1e9):
        params = parameters()
        true = flat(in_float64(params))
        if scale:
            for p in params:
                p.grad = None if p.grad is None else p.grad * scale
        found = clip_gradients(params, max_value=max_value, scale=None if scale is None else torch.tensor(scale))
        wanted = [min(max(value, -max_value), max_value) * (scale or 1.0) for value in true]
        assert flat(in_float64(params)) == pytest.approx(wanted, rel=1e-5, abs=2e-6 * (scale or 1.0))
        assert bool(found.clipped) == any(abs(value) > max_value for value in true)


def test_dense_ones_are_clipped_as_torch_does():
    params = [p for p in parameters() if p.grad is not None and not p.grad.is_sparse]
    others = copy.deepcopy(params)
    for mine, other in zip(params, others, strict=True):
        other.grad = mine.grad.clone()
    total = nn.utils.clip_grad_norm_(others, 0.7)
    assert torch.equal(clip_gradients(params, max_norm=0.7).norm, total)
    for mine, other in zip(params, others, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_very_bound_each_gradient_is_as_torch_has_it(dtype):
    for shift in (-1e-4, -3e-6, -1e-6, -3e-7, -1e-7, -3e-8, 0.0, 3e-8, 1e-7, 3e-7, 1e-6, 1e-4):
        gradient = torch.randn(20, dtype=dtype) * 10 ** random.uniform(-2, 2)
        bound = float(gradient.norm()) * (1 + shift) + 1e-6
        mine, other = nn.Parameter(torch.zeros(20, dtype=dtype)), nn.Parameter(torch.zeros(20, dtype=dtype))
        mine.grad, other.grad = gradient.clone(), gradient.clone()
        nn.utils.clip_grad_norm_([other], bound)
        clip_gradients([mine], max_norm=bound)
        assert torch.equal(mine.grad, other.grad)


def test_gradients_within_the_norm_are_not_touched():
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.randn(3)
    before = weight.grad._version
    clip_gradients([weight], max_norm=1e3)
    assert weight.grad._version == before
    clip_gradients([weight], max_norm=1e-3)
    assert weight.grad._version > before


def test_a_float16_norm_beyond_the_largest_float16_is_right():
    weight = nn.Parameter(torch.zeros(10_000, dtype=torch.float16))
    weight.grad = torch.full_like(weight, 1000.0)
    assert float(clip_gradients([weight], max_norm=1.0).norm) == pytest.approx(1e5, rel=1e-4)
    assert float(weight.grad[0]) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("arguments", [{"max_norm": 0.1}, {"max_value": 0.1}])
def test_gradients_that_are_not_finite_are_left_as_they_are(bad, arguments):
    params = parameters()
    params[1].grad[0, 0] = bad
    table, *dense = in_float64(params)
    found = clip_gradients(params, **arguments)
    table_after, *dense_after = in_float64(params)
    assert flat(dense_after) == pytest.approx(flat(dense), rel=0, abs=0, nan_ok=True)
    assert table_after == pytest.approx(table, abs=2e-6)  # its rows were added up, in whichever order
    assert not found.finite
    assert not found.clipped


def test_without_gradients_nothing_is_found():
    assert clip_gradients([nn.Parameter(torch.zeros(2))], max_norm=1.0) is None
    empty = nn.Parameter(torch.zeros(2, 3))
    empty.grad = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, 3), (2, 3))
    assert clip_gradients([empty], max_value=1.0) is None


def test_several_are_gathered():
    found = []
    for size in (3.0, math.inf, 0.1):
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([size])
        found.append(clip_gradients([weight], max_norm=1.0))
    together = Clipped.gathered(found)
    assert together.finite.tolist() == [True, False, True]
    assert together.clipped.tolist() == [True, False, False]
