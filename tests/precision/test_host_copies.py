from __future__ import annotations

import math

import pytest
import torch

from lightning_mp.precision.host_copies import HostCopies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_numbers_arrive_in_order_as_they_were_when_they_were_sent(dtype):
    sent = [torch.randn((), dtype=dtype), torch.randn(1, dtype=dtype), torch.randn(3, dtype=dtype)[2]]
    sent += [torch.tensor(value, dtype=dtype) for value in (math.inf, -math.inf, math.nan, 0.0)]
    wanted = [value.item() for value in sent]
    copies = HostCopies()
    for place, value in enumerate(sent):
        copies.push(value, place)
        value.zero_()
    assert len(copies) == len(sent)
    found = copies.arrived()
    assert [tag for tag, _ in found] == list(range(len(sent)))
    assert [number for _, number in found] == pytest.approx(wanted, nan_ok=True, abs=0)
    assert len(copies) == 0 == len(copies.arrived())


def test_a_loss_with_its_graph_is_read_without_it():
    weight = torch.randn(4, requires_grad=True)
    loss, copies = (weight * weight).sum(), HostCopies()
    copies.push(loss, "loss")
    assert copies.arrived() == [("loss", loss.item())]
    loss.backward()
    assert torch.equal(weight.grad, 2 * weight.detach())


def test_a_negated_view_and_a_large_float64_have_their_value():
    negated = torch.view_as_complex(torch.randn(1, 2)).conj().imag
    assert negated.is_neg()
    for number in (negated, torch.tensor(1e300, dtype=torch.float64)):
        copies = HostCopies()
        copies.push(number, None)
        assert copies.arrived() == [(None, number.item())]


def test_numbers_known_already_keep_their_place_behind_those_on_their_way():
    copies = HostCopies()
    for place in range(12):  # more than may be on their way; of these formats each second is copied
        kind = torch.bfloat16 if place % 2 else torch.float32
        copies.push(torch.tensor(float(place), dtype=kind), place)
        copies.give(place + 0.5, place)
    assert len(copies) == 24
    assert copies.arrived() == [(place, place + half) for place in range(12) for half in (0.0, 0.5)]
