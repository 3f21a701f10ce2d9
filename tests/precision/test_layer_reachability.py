from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_mp.precision.layer_reachability import LayerReachability


def edges(module, *inputs):
    watch = LayerReachability()
    watch.attach(module)
    module(*inputs)
    watch.detach()
    assert not any(layer._forward_hooks for layer in module.modules())
    return watch.edges()


class Custom(nn.Module):
    """A layer of one's own: a raw matrix, no `nn.Linear`."""

    def __init__(self, rows, columns):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(rows, columns))

    def forward(self, x):
        return x @ self.matrix


def test_random_chains_in_random_registration_order():
    for _ in range(10):
        order = torch.randperm(6).tolist()
        net = nn.ModuleDict({str(place): nn.Linear(3, 3) for place in order})
        net.forward = lambda x, net=net: [x := torch.relu(net[str(place)](x)) for place in range(6)][-1]
        assert edges(net, torch.randn(2, 3)) == (("0",), ("5",))


def test_a_layer_of_ones_own_counts_and_an_embedding_does_not():
    net = nn.Sequential(nn.Embedding(9, 4), Custom(4, 5), nn.LayerNorm(5), nn.Linear(5, 1))
    assert edges(net, torch.arange(3)) == (("1",), ("3",))


def test_a_parallel_layer_alone_is_both_ends():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.deep = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

        def forward(self, x):
            return self.wide(x) + self.deep(x)

    assert edges(Wide(), torch.randn(2, 4)) == (("wide", "deep.0"), ("wide", "deep.1"))


def test_a_shared_layer_is_named_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.tower(x) * self.tower(-x))

    assert edges(Shared(), torch.randn(2, 4)) == (("tower",), ("head",))


def test_a_checkpointed_segment_is_seen_in_the_forward_pass():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.c(checkpoint(self.b, self.a(x), use_reentrant=False))

    assert edges(Checkpointed(), torch.randn(2, 4)) == (("a",), ("c",))


def test_a_compiled_module_is_seen_under_its_own_names():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    outer = nn.Module()
    outer.inner = torch.compile(net, backend="eager")
    outer.forward = outer.inner.__call__
    assert edges(outer, torch.randn(2, 4)) == (("inner.0",), ("inner.2",))


def test_multi_head_attention_is_one_layer():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 1)

        def forward(self, x):
            return self.head(self.attention(x, x, x)[0])

    assert edges(Attention(), torch.randn(2, 3, 8)) == (("attention",), ("head",))
