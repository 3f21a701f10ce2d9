from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
import torch
from torch import nn

from lightning_mp.precision.norm_snapshots import NormSnapshots

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def norms(dtype: torch.dtype, momentum: float | None = 0.1) -> nn.Module:
    net = nn.Sequential(
        nn.BatchNorm1d(5, momentum=momentum), nn.Linear(5, 3), nn.InstanceNorm2d(7, track_running_stats=True),
        nn.Sequential(nn.BatchNorm2d(1), nn.BatchNorm3d(4, track_running_stats=False)),
    ).to(dtype)  # fmt: skip
    for buffer in net.buffers():
        (buffer.normal_() if buffer.is_floating_point() else buffer.random_(100))
    return net


def state(net: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(dict(net.named_buffers()))


def same(first: dict[str, Any], second: dict[str, Any], but: str = "-") -> bool:
    return all(torch.equal(first[name], second[name]) for name in first if but not in name)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_bad_value_anywhere_brings_the_last_good_statistics_back(dtype, value):
    net = norms(dtype)
    snapshots = NormSnapshots(net)
    for _ in range(random.randint(1, 6)):
        snapshots.take()
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.randn_like(buffer))
    snapshots.take()
    good = state(net)
    for name in [name for name, buffer in net.named_buffers() if buffer.is_floating_point()]:
        buffer = net.get_buffer(name)
        buffer[random.randrange(len(buffer))] = value
        snapshots.take()
        snapshots.settle(wait=True)
        assert same(good, state(net))
    assert snapshots.restored == 5 + 1  # two of each layer that keeps them


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_values_are_no_bad_ones(dtype):
    net = norms(dtype)
    snapshots = NormSnapshots(net)
    snapshots.take()
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.finfo(dtype).max * torch.randn_like(buffer).sign())
    snapshots.take()
    before = state(net)
    snapshots.settle(wait=True)
    assert snapshots.restored == 0
    assert same(before, state(net))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_count_of_batches_comes_back_where_it_is_a_part_of_the_average(momentum):
    net = norms(torch.float32, momentum)
    snapshots = NormSnapshots(net)
    snapshots.take()
    good = state(net)
    net[0].num_batches_tracked += 1
    net[0].running_var[2] = math.nan
    snapshots.take()
    snapshots.settle(wait=True)
    assert same(good, state(net), but="num_batches_tracked")
    assert int(net[0].num_batches_tracked) == int(good["0.num_batches_tracked"]) + (momentum is not None)


def test_statistics_that_lie_apart_in_memory_are_kept_too():
    net = nn.BatchNorm1d(3)
    net.running_mean = torch.randn(3, 2)[:, 0]
    snapshots = NormSnapshots(net)
    snapshots.take()
    good = net.running_mean.clone()
    net.running_mean[1] = math.nan
    snapshots.take()
    snapshots.settle(wait=True)
    assert torch.equal(net.running_mean, good)
    assert snapshots.restored == 1
