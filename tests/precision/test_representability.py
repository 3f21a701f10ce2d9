from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_mp.precision.representability import came_out_of


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_it_agrees_with_a_cast_by_another_library_value_by_value(dtype):
    for _ in range(20):
        values = torch.randn(64) * 10.0 ** float(torch.randint(-6, 4, ()))
        short = values.to(dtype).float()
        assert int(came_out_of(values, dtype)) == 0
        wanted = 1 if int((short != 0).sum()) >= 4 else -1
        assert int(came_out_of(short, dtype)) == wanted
    assert np.array_equal(values.half().float().numpy(), values.numpy().astype(np.float16).astype(np.float32))


def test_one_longer_value_is_enough_to_say_no():
    values = torch.randn(1000).half().float()
    values[17] = 1.0 + 2.0**-12
    assert int(came_out_of(values)) == 0


def test_zeros_and_non_finite_values_say_nothing():
    values = torch.tensor([0.0, float("inf"), float("nan"), 0.5, 0.25, 3.0])
    assert int(came_out_of(values)) == -1
    assert int(came_out_of(torch.cat([values, torch.ones(1)]))) == 1


def test_a_sparse_gradient_is_judged_by_its_values():
    table = torch.nn.Embedding(50, 4, sparse=True)
    (table(torch.arange(8)) * torch.randn(8, 4)).sum().backward()
    assert table.weight.grad.is_sparse
    assert int(came_out_of(table.weight.grad)) == 0


def test_weight_gradients_of_autocast_and_of_float32_are_told_apart():
    layer, x = torch.nn.Linear(6, 5), torch.randn(7, 6)
    gradients = {}
    for enabled in (True, False):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            y = layer(x)
        (y.float() ** 2).mean().backward()
        gradients[enabled] = int(came_out_of(layer.weight.grad))
    assert gradients == {True: 1, False: 0}
