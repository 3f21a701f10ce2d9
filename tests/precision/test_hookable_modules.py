from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_mp.precision.forward_replay import ForwardReplay
from lightning_mp.precision.forward_trace import ForwardTrace, non_finite_outputs
from lightning_mp.precision.hookable_modules import hookable_modules, scripted_modules
from lightning_mp.precision.layer_reachability import LayerReachability

pytestmark = pytest.mark.filterwarnings("ignore:.*`torch.jit.*:DeprecationWarning")


def scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


class Mixed(nn.Module):
    """Scripted and traced layers among plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.net = nn.Linear(4, 4), scripted()
        self.block = nn.ModuleDict({"inner": nn.Sequential(nn.Linear(4, 4), scripted())})
        self.traced = torch.jit.trace(nn.Linear(4, 4), torch.ones(1, 4))
        self.act = torch.jit.script(nn.ReLU())
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.traced(self.block["inner"](self.net(self.first(x))))))


def test_modules_that_take_hooks_and_the_scripted_ones_that_do_not():
    module = Mixed()
    hookable = [name for name, _ in hookable_modules(module)]
    assert hookable == ["", "first", "block", "block.inner", "block.inner.0", "last"]
    assert [*scripted_modules(module)] == ["net", "block.inner.1", "traced", "act"]
    assert [*scripted_modules(module, at_least_dims=2)] == ["net", "block.inner.1", "traced"]
    assert [*scripted_modules(scripted())] == [""]
    for _, inner in hookable_modules(module):
        inner.register_forward_hook(lambda *_: None, with_kwargs=False).remove()


def test_replay_and_trace_look_at_what_stands_beside_a_scripted_layer():
    module, x = Mixed(), torch.full((2, 4), float("inf"))
    trace, replay = ForwardTrace(), ForwardReplay()
    trace.attach(module)
    replay.attach(module)
    module(x)
    trace.detach()
    replay.detach()
    assert non_finite_outputs(trace.outputs)[0] == "first"
    assert replay.non_finite_layers() == ("first",)
    replay.forget()
    replay.attach(outer := nn.Sequential(module))  # one part, and all of it beside TorchScript
    outer(x)
    replay.detach()
    assert replay.non_finite_layers() == ("0.first",)


def test_what_reads_a_scripted_layer_is_no_input_layer():
    module, watch = Mixed(), LayerReachability()
    watch.attach(module)
    module(torch.randn(2, 4))
    watch.detach()
    assert watch.edges() == (("first",), ("last",))
