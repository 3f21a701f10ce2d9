from __future__ import annotations

import copy

import pytest
import torch
import torchmetrics
from torch import nn

from lightning_mp.precision.float32_layers import Float32Layers
from lightning_mp.precision.forward_replay import ForwardReplay


def watched(module, *inputs):
    replay = ForwardReplay()
    replay.attach(module)
    with torch.autocast("cpu", dtype=torch.float16):
        module(*inputs)
    replay.detach()
    assert not any(inner._forward_pre_hooks for inner in module.modules())
    return replay


def network():
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)))


def test_the_replay_leaves_everything_as_it_was():
    net, seen = network(), []
    net[0][1].register_forward_hook(lambda *_: seen.append(1))
    replay = watched(net, torch.randn(5, 4) * 1e9)
    state, random, attributes = copy.deepcopy(net.state_dict()), torch.get_rng_state(), dict(vars(net[0][1]))
    assert replay.non_finite_layers()[0] == "0.0"
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(random, torch.get_rng_state())
    assert vars(net[0][1]) == attributes
    assert seen == [1]
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("inside", [False, True], ids=["beside the network", "inside it"])
def test_a_metric_counts_a_batch_once(inside):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.mean = nn.Linear(4, 4), torchmetrics.MeanMetric()
            self.both = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.MaxMetric()])
            self.mean.register_forward_hook(lambda *_: seen.append(1))

        def forward(self, x):
            self.mean(x.mean())
            self.both(x.mean())
            return self.layer(x)

    seen, net = [], Counting()
    replay = watched(nn.Sequential(net) if inside else net, torch.randn(5, 4) * 1e9)
    values = net.mean.compute(), net.both.compute()
    assert replay.non_finite_layers() == (("0.layer",) if inside else ("layer",))
    assert (net.mean.compute(), net.both.compute()) == values
    assert (net.mean.update_count, net.both["MaxMetric"].update_count, seen) == (1, 1, [1])


def test_two_replays_of_one_module_both_see_the_batch_that_is_on():
    net, first, second = network(), ForwardReplay(), ForwardReplay()
    for replay in (second, first):
        replay.attach(net)
    net(torch.randn(5, 4))
    first.pause()
    first.forget()  # the second still wants them
    second.forget()
    for replay in (second, first):
        replay.attach(net)
    net(torch.randn(5, 4) * float("inf"))
    assert first.non_finite_layers() == second.non_finite_layers() != ()
    first.detach()
    second.detach()


def test_it_runs_in_the_precision_of_the_first_time():
    net = network()
    replay = watched(net, torch.randn(5, 4) * 1e6)  # overflows float16, not float32
    assert replay.non_finite_layers()[0] == "0.0"
    kept = Float32Layers({"0.0": net[0][0]})
    assert watched(net, torch.randn(5, 4) * 1e6).non_finite_layers() == ()
    kept.release()


def test_activations_are_not_kept_and_a_part_that_refuses_has_no_name():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x):
            return self.parts[1](self.parts[0](x))

    replay = watched(Flat(), torch.full((2, 4), 1e9))
    assert replay.non_finite_layers() == ("parts.0",)

    class Once(nn.Module):
        runs: list[int] = []  # noqa: RUF012

        def forward(self, x):
            self.runs.append(1)
            if len(self.runs) > 1:
                raise RuntimeError("only once")
            return x

    assert watched(nn.Sequential(Once()), torch.full((2, 4), float("inf"))).non_finite_layers() == ()


def test_two_replays_share_the_hooks_of_a_module_and_see_their_own_time():
    net = network()
    first, second = ForwardReplay(), ForwardReplay()
    for replay in (first, second):
        replay.forget()
        replay.attach(net)
    assert [len(inner._forward_pre_hooks) for inner in net] == [1]
    net(torch.full((5, 4), float("inf")))
    first.pause()
    net(torch.randn(5, 4))
    second.pause()
    assert first.non_finite_layers() == second.non_finite_layers() != ()
    first.forget()
    first.attach(net)
    net(torch.randn(5, 4))
    first.pause()
    assert first.non_finite_layers() == ()
    assert second.non_finite_layers()  # what it saw is its own
    first.detach()
    assert [len(inner._forward_pre_hooks) for inner in net] == [1]
    second.detach()
    assert not any(inner._forward_pre_hooks for inner in net.modules())
    assert copy.deepcopy(net)[0][0].weight.shape == (8, 4)


class Tabular(nn.Module):
    """A table, one of a class of its own, a layer that reads the batch, and one that reads activations only."""

    def __init__(self):
        super().__init__()

        class Scaled(nn.Embedding):
            def forward(self, ids):
                return super().forward(ids) * 1e38

        self.tables = nn.ModuleList([nn.Embedding(9, 4), Scaled(9, 4)])
        self.bottom, self.top = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, ids, x):
        return self.top(self.tables[0](ids) + self.tables[1](ids).clamp(-1, 1) + self.bottom(x).float())


def test_a_plain_table_has_no_hook_for_its_rows_are_finite_where_it_is():
    net, replay = Tabular(), ForwardReplay()
    net.tables[1].weight.data.mul_(1e3)
    ids, x = torch.randint(9, (5,)), torch.randn(5, 3)
    replay.attach(net)
    net(ids, x)
    hooked = {name for name, inner in net.named_modules() if inner._forward_pre_hooks}
    assert hooked == {"tables.1", "bottom", "top"}
    replay.pause()
    assert replay.non_finite_layers() == ("tables.1",)
    replay.attach(net)  # the next batch: what has read activations only is left alone from now on
    hooked = {name for name, inner in net.named_modules() if inner._forward_pre_hooks}
    assert hooked == {"tables.1", "bottom"}
    replay.detach()
    assert not any(inner._forward_pre_hooks for inner in net.modules())


def test_where_only_tables_read_the_batch_no_hook_stays():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.top, self.unused = nn.Embedding(9, 4), nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, ids):
            return self.top(self.table(ids).sum(1))

    net, replay = Pooled(), ForwardReplay()
    for _ in range(2):
        replay.forget()
        replay.attach(net)
        net(torch.randint(9, (5, 2)))
    assert [name for name, inner in net.named_modules() if inner._forward_pre_hooks] == ["unused"]
    net.unused(torch.full((2, 4), float("inf")))  # a part that runs for the first time after the first batch
    replay.detach()
    assert replay.non_finite_layers() == ("unused",)
    assert not any(inner._forward_pre_hooks for inner in net.modules())
