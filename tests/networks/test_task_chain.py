from __future__ import annotations

import math
from decimal import Decimal, getcontext

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_mp.networks.task_chain import chain_logits


def test_against_the_product_of_chances_in_float64():
    logits = torch.randn(500, 4, dtype=torch.float64) * 3
    wanted = torch.sigmoid(logits).cumprod(dim=1)
    torch.testing.assert_close(torch.sigmoid(chain_logits(logits)).double(), wanted, rtol=2e-6, atol=1e-9)


def test_against_forty_digits_where_float64_itself_gives_up():
    getcontext().prec = 60
    logits = [[60.0, 45.0, 70.0], [-80.0, -60.0, 3.0], [88.0, -88.0, 90.0]]
    found = chain_logits(torch.tensor(logits)).double()
    for row, steps in zip(found.tolist(), logits, strict=True):
        chance = Decimal(1)
        for value, step in zip(row, steps, strict=True):
            chance /= 1 + (-Decimal(step)).exp()
            assert value == pytest.approx(float((chance / (1 - chance)).ln()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype):
    logits = torch.randn(64, 3).to(dtype)
    assert chain_logits(logits).dtype == torch.float32
    assert torch.equal(chain_logits(logits), chain_logits(logits.float()))


def test_gradients_are_right_and_finite_at_the_extremes():
    logits = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 2, (6, 3)).double()

    def loss(z):
        return binary_cross_entropy_with_logits(chain_logits(z).double(), labels)

    (found,) = torch.autograd.grad(loss(logits), logits)
    exact = logits.detach().requires_grad_()
    chance = torch.sigmoid(exact).cumprod(dim=1)
    plain = -(labels * chance.log() + (1 - labels) * torch.log1p(-chance)).mean()
    torch.testing.assert_close(found, torch.autograd.grad(plain, exact)[0], rtol=1e-5, atol=1e-7)
    for size in (1e-3, 1e3, 6e4):
        wide = (torch.randn(50, 3) * size).requires_grad_()
        binary_cross_entropy_with_logits(chain_logits(wide), torch.randint(0, 2, (50, 3)).float()).backward()
        assert wide.grad.isfinite().all()


def test_one_task_is_no_chain():
    logits = torch.linspace(-20, 20, 41).unsqueeze(1)
    torch.testing.assert_close(chain_logits(logits), logits, rtol=1e-6, atol=1e-6)
    assert math.isfinite(chain_logits(torch.tensor([[1e4]])).item())
