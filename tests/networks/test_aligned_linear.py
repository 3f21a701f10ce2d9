from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lightning_mp.networks.aligned_linear import AlignedLinear


@pytest.mark.parametrize("width", [1, 15, 16, 37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_plain_layer_forward_and_backward(width, dtype):
    layer = AlignedLinear(width, 5).to(dtype)
    plain = nn.Linear(width, 5).to(dtype)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(9, width, dtype=dtype)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    for module, one in zip((layer, plain), inputs, strict=True):
        module(one).square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad)
    assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_runs_it_in_half_precision(dtype):
    layer = AlignedLinear(7, 3)
    with torch.autocast("cpu", dtype=dtype):
        assert layer(torch.randn(4, 7, requires_grad=True)).dtype is dtype
    assert copy.deepcopy(layer).to(dtype)(torch.randn(4, 7, dtype=dtype, requires_grad=True)).dtype is dtype


def test_it_is_differentiable_twice():
    layer = AlignedLinear(5, 2).double()
    assert torch.autograd.gradgradcheck(lambda x: layer(x).tanh(), torch.randn(3, 5).double().requires_grad_())
