from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from lightning_mp.precision.gradient_sample import ExponentHistogram, GradientSample, spread

LAYOUTS = {
    "row by row": lambda x: x,
    "turned": lambda x: x.mT.contiguous().mT,
    "every second column": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "axes exchanged": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "one value for all": lambda x: x.flatten()[0].expand(x.shape),
}


def slow(values: Tensor, samples: int) -> list[float]:
    """Every n-th value, in the order in which they lie, picked one by one."""
    turned = values.dim() >= 2 and not values.is_contiguous() and values.mT.is_contiguous()
    flat = (values.mT if turned else values).flatten().tolist()
    step = max(1, math.ceil(len(flat) / samples))
    while step > 1 and math.gcd(step, math.prod(values.shape[-2:])) > 1:
        step += 1
    return flat[::step]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_a_slow_count(layout, dtype):
    for dims in (1, 2, 3, 4):
        shape = [random.randint(1, 9) for _ in range(dims)]
        values = torch.randn(shape, dtype=dtype)
        if dims > 1 or layout != "turned":
            values = LAYOUTS[layout](values)
        for samples in (1, 5, 64, 10_000):
            taken = spread(values, samples)
            assert taken.dtype is torch.float32
            assert taken.tolist() == pytest.approx(slow(values, samples), rel=1e-6)
            assert taken.data_ptr() != values.data_ptr()


def histogram_of(weight: Tensor, gradient: Tensor) -> ExponentHistogram:
    sample = GradientSample({"weight": weight, "unused": torch.zeros(2, requires_grad=True)}, samples=4096)
    sample.attach()
    weight.backward(gradient)
    sample.detach()
    assert not weight._backward_hooks
    return sample.histogram()


def agrees(histogram: ExponentHistogram, values: list[float]) -> bool:
    wanted = [0] * 256
    for value in values:
        wanted[math.frexp(value)[1] + 126] += 1
    largest = pytest.approx({"weight": max(map(abs, values))}, rel=1e-6)
    return histogram.largest == largest and histogram.counts == {"weight": wanted}


@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_largest_and_the_exponents_are_those_of_this_pass_alone(layout, accumulates):
    weight, gradient = torch.zeros(7, 11, requires_grad=True), LAYOUTS[layout](torch.randn(7, 11))
    weight.grad = torch.randn(7, 11) * 1e3 if accumulates else None
    assert agrees(histogram_of(weight, gradient), gradient.flatten().tolist())


def test_what_is_scaled_or_dropped_after_the_pass_was_seen_as_it_was():
    weight, gradient = torch.zeros(5, requires_grad=True), torch.randn(5)
    weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    assert agrees(histogram_of(weight, gradient), gradient.tolist())
    sample = GradientSample({"weight": (other := torch.zeros(5, requires_grad=True))}, samples=4096)
    sample.attach()
    other.backward(gradient)
    sample.detach()
    other.grad.mul_(1e-3)
    assert agrees(sample.histogram(), gradient.tolist())


def test_rows_of_a_sparse_gradient_are_its_values():
    table = torch.nn.Embedding(9, 3, sparse=True)
    rows, weights = torch.randint(9, (20,)), torch.randn(20, 3)
    sample = GradientSample({"weight": table.weight}, samples=4096)
    sample.attach()
    (table(rows) * weights).sum().backward()
    sample.detach()
    assert agrees(sample.histogram(), weights.flatten().tolist())
