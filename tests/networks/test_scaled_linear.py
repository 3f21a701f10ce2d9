from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_mp.float_formats import BFLOAT16, FLOAT16
from lightning_mp.networks.scaled_linear import scaled_linear


@pytest.mark.parametrize(("dtype", "form"), [(torch.float16, FLOAT16), (torch.bfloat16, BFLOAT16)])
@pytest.mark.parametrize("exponent", [-20, -3, 0, 3, 20, 60])
def test_it_is_as_exact_at_any_magnitude_as_at_one(dtype, form, exponent):
    layer = nn.Linear(32, 16, bias=False)
    x = torch.randn(40, 32) * 2.0**exponent
    expected = x.double() @ layer.weight.double().T
    with torch.autocast("cpu", dtype=dtype):
        product = scaled_linear(layer, x)
    size = x.double().abs() @ layer.weight.double().abs().T
    floor = form.smallest_subnormal * 32
    assert product.dtype == torch.float32
    assert ((product - expected).abs() <= 2 * form.relative_step * size + floor).all()


def test_without_half_precision_it_is_the_plain_product():
    layer = nn.Linear(5, 3, bias=False)
    x = torch.randn(4, 5) * 1e6
    assert torch.equal(scaled_linear(layer, x), layer(x))
    assert torch.equal(scaled_linear(layer.double(), x.double()), layer(x.double()))


def test_the_scale_takes_no_part_in_the_gradient():
    layer = nn.Linear(6, 2, bias=False)
    x = (torch.randn(3, 6) * 1e4).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled_linear(layer, x).sum().backward()
    expected = layer.weight.sum(0).detach().expand(3, 6)
    torch.testing.assert_close(x.grad, expected, rtol=2**-6, atol=2**-6)
