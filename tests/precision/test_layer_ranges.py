from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_mp.precision.layer_ranges import LayerRanges

# torch.compile asks for it itself, at every break of the graph.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


class Crosses(nn.Module):
    """Plain cross layers with their product between the layers, and one layer that runs twice."""

    def __init__(self, width: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 2)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.twice = nn.Linear(width, width)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(width, 1)

    def forward(self, ids, x):
        first = crossed = torch.cat([self.table(ids), x], 1)
        for layer in self.cross:
            crossed = first * layer(crossed) + crossed
        return self.head(self.relu(self.twice(self.twice(crossed))))


@torch.no_grad()
def by_hand(net: Crosses, ids: torch.Tensor, x: torch.Tensor) -> dict[str, tuple[float, float]]:
    """What goes into each layer and comes out, in float64, written without hooks."""

    def linear(layer, value):
        return value @ layer.weight.double().T + layer.bias.double()

    def largest(*values):
        return max(float(value.abs().max()) for value in values)

    found = {"table": (0.0, largest(net.table.weight[ids].double()))}
    first = crossed = torch.cat([net.table.weight[ids].double(), x.double()], 1)
    for number, layer in enumerate(net.cross):
        out = linear(layer, crossed)
        found[f"cross.{number}"] = largest(crossed), largest(out)
        crossed = first * out + crossed
    once = linear(net.twice, crossed)
    again = linear(net.twice, once)
    found["twice"] = largest(crossed, once), largest(once, again)
    found["relu"] = (largest(again.clamp(min=0)),) * 2  # in place: what went in is gone
    found["head"] = largest(again.clamp(min=0)), largest(linear(net.head, again.clamp(min=0)))
    return found


def batch(rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(9, (rows,)), torch.randn(rows, 4) * 3


@pytest.mark.parametrize("autocast", [False, True])
def test_ranges_are_those_of_a_forward_pass_in_float64(autocast):
    net, (ids, x) = Crosses(), batch()
    ranges = LayerRanges(net)
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        net(ids, x)
    ranges.detach()
    found = {entry.layer: (entry.entered, entry.computed) for entry in ranges.read()}
    wanted = by_hand(net, ids, x)
    assert list(found) == list(wanted)
    for name, pair in wanted.items():
        assert found[name] == pytest.approx(pair, rel=0.05 if autocast else 1e-4, abs=0.05 if autocast else 1e-5), name


def test_it_knows_what_feeds_a_layer_and_in_which_format():
    net, (ids, x) = Crosses(), batch()
    ranges = LayerRanges(net)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = net(ids, x.half()).sum()
        found = {entry.layer: entry for entry in ranges.read()}
    assert loss.requires_grad  # its graph is still there when it is read
    ranges.detach()
    # Read off the forward pass: the embedding is in every product, and the sum hands on what came before.
    assert found["cross.0"].feeds == {"table"}
    assert found["cross.2"].feeds == {"table", "cross.0", "cross.1"}
    assert found["head"].feeds == {"relu"}
    assert {name for name, entry in found.items() if entry.direct} == {"table", "head"}  # `relu` writes in place
    assert {name for name, entry in found.items() if entry.result_short} == {
        "cross.0", "cross.1", "cross.2", "twice", "relu", "head",
    }  # fmt: skip
    assert not found["cross.1"].short  # the embedding is float32, and so is its product
    assert found["head"].short


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_is_infinite(bad):
    net = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    nn.init.constant_(net[0].weight, 1.0)  # none but -inf, and it may be a mask
    ranges = LayerRanges(net)
    net(torch.tensor([[1.0, bad], [2.0, 3.0]]))
    ranges.detach()
    assert [(entry.entered, entry.computed) for entry in ranges.read()] == [(float("inf"),) * 2] * 2


def test_what_runs_again_in_the_backward_pass_counts_once():
    net, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(5, 3, requires_grad=True)
    ranges = LayerRanges(net)
    seen = []
    ranges.see = lambda name, *_, **__: seen.append(name)  # type: ignore[method-assign]
    loss = checkpoint(net, x, use_reentrant=False).sum()
    ranges.settle()
    loss.backward()
    ranges.detach()
    assert seen == ["0", "1"]


def test_inside_layers_that_are_kept_nothing_is_measured():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 1))
    ranges = LayerRanges(net, kept=["0", "1"])
    net(torch.randn(3, 2))
    ranges.detach()
    assert [(entry.layer, entry.kept) for entry in ranges.read()] == [("0", True), ("1", True)]


def test_a_sample_lies_between_a_part_and_the_whole():
    net, x = nn.Identity(), torch.rand(1000, 300)
    box = nn.Sequential(net)
    found = []
    for whole in (True, False):
        ranges = LayerRanges(box, whole=whole)
        box(x)
        ranges.detach()
        found.append(ranges.read()[0].entered)
    every = x[:: -(-x.numel() // 65_536)]
    assert found == [float(x.max()), float(every.max())]
    assert every.numel() <= 65_536


def test_hooks_come_off_and_copies_have_none_that_do_anything():
    net, (ids, x) = Crosses(), batch()
    ranges = LayerRanges(net)
    other = copy.deepcopy(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    other(ids, x), again(ids, x)
    assert ranges.read() == ()
    ranges.detach()
    net(ids, x)
    assert ranges.read() == ()
    assert not any(inner._forward_hooks for inner in net.modules())


def test_what_is_compiled_is_measured_uncompiled_and_not_compiled_again():
    net, (ids, x) = Crosses(), batch()
    box = nn.ModuleDict({"net": torch.compile(net, backend="aot_eager")})
    torch._dynamo.utils.counters.clear()
    box["net"](ids, x)
    once = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    ranges = LayerRanges(box)
    box["net"](ids, x)
    ranges.detach()
    assert {entry.layer for entry in ranges.read()} == {f"net.{name}" for name in by_hand(net, ids, x)}
    box["net"](ids, x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == once > 0
