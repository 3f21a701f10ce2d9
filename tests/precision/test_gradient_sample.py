from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from lightning_mp.precision.gradient_sample import GradientSample, spread

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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_largest_and_the_exponents_are_right_whatever_the_layout(layout):
    weight = torch.zeros(7, 11, requires_grad=True)
    gradient = LAYOUTS[layout](torch.randn(7, 11))
    sample = GradientSample({"weight": weight}, samples=4096)
    sample.attach()
    weight.backward(gradient)
    sample.detach()
    histogram = sample.histogram()
    assert histogram.largest["weight"] == pytest.approx(max(map(abs, gradient.flatten().tolist())), rel=1e-6)
    wanted = [0] * 256
    for value in gradient.flatten().tolist():
        wanted[math.frexp(value)[1] + 126] += 1
    assert histogram.counts["weight"] == wanted
