"""`KeepInFP32()` where the forward pass outgrows float16: a forward pass in float64, written by hand, is the oracle."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import KeepInFP32, LossScaleMonitor, PrecisionReport
from lightning_mp.errors import ConfigurationError, LightningMPWarning

WIDTH, DEPTH, LIMIT = 6, 6, 65504.0 / 8
# torch.compile asks for it itself, at every break of the graph.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


class Linears(nn.Module):
    """A list of layers, their products between them."""

    def __init__(self, first: nn.Linear, crosses: list[nn.Linear], head: nn.Linear) -> None:
        super().__init__()
        self.first, self.cross, self.head = first, nn.ModuleList(crosses), head

    def crossed(self, x0: Tensor) -> Tensor:
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.crossed(self.first(x))).squeeze(1)


class PlainCross(nn.Module):
    """As one finds it: the product in the module that owns the weights."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(linear.weight.detach().T.clone()), nn.Parameter(linear.bias.detach().clone())

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * (x @ self.w) + x0 * self.b + x


class ParentCross(nn.Module):
    """The product in the module around the layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        return x0 * self.linear(x) + x


class Modules(Linears):
    def crossed(self, x0: Tensor) -> Tensor:
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        return x


def plain(first: nn.Linear, crosses: list[nn.Linear], head: nn.Linear) -> nn.Module:
    return Modules(first, [PlainCross(linear) for linear in crosses], head)


def parent(first: nn.Linear, crosses: list[nn.Linear], head: nn.Linear) -> nn.Module:
    return Modules(first, [ParentCross(linear) for linear in crosses], head)


KINDS = {"between layers": (Linears, "{}"), "own weights": (plain, "{}"), "around a layer": (parent, "{}.linear")}


def layers(gain: float = 3.0) -> tuple[nn.Linear, list[nn.Linear], nn.Linear]:
    """Crosses that multiply what they are given some ten times; the last ones overflow."""
    crosses = [nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]
    for linear in crosses:
        nn.init.orthogonal_(linear.weight, gain)
    first, head = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
    nn.init.orthogonal_(first.weight, 3.0)
    nn.init.constant_(head.weight, 1e-9)
    return first, crosses, head


@torch.no_grad()
def sizes(first: nn.Linear, crosses: list[nn.Linear], x: Tensor) -> list[tuple[float, float, float]]:
    """At each cross layer the largest of what goes in, of its linear part, and of what comes out, in float64."""
    x0 = x.double() @ first.weight.double().T + first.bias.double()
    found, value = [], x0
    for linear in crosses:
        out = value @ linear.weight.double().T + linear.bias.double()
        after = x0 * out + value
        found.append(tuple(float(tensor.abs().max()) for tensor in (value, out, after)))
        value = after
    return found


class Ranker(pl.LightningModule):
    def __init__(self, net: nn.Module, *, rate: float = 0.0, fused: bool = False, bad: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.net, self.run, self.rate, self.fused, self.bad = net, net, rate, fused, bad
        self.gradients: list[dict[str, Tensor]] = []
        self.losses: list[float] = []
        self.example_input_array = torch.randn(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0] * math.nan if batch_idx in self.bad else batch[0]
        loss = (self(x).float() - batch[1]).square().mean()
        self.losses.append(float(loss.detach()))
        return loss

    def on_after_backward(self) -> None:
        self.gradients.append({n: p.grad.clone() for n, p in self.named_parameters() if p.dim() == 2})

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.rate, fused=self.fused)


class Validated(Ranker):
    validation_step = Ranker.training_step


def loader(batches: int = 8, rows: int = 32) -> DataLoader[Any]:
    x = torch.randn(batches * rows, 4)
    return DataLoader(TensorDataset(x, x.sum(1)), batch_size=rows)


def short(gradient: Tensor) -> bool:
    """Whether every value of a gradient is one of float16, element by element."""
    return all(float(torch.tensor(v).half()) == v for v in gradient.flatten().tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_overflow_are_taken_in_and_the_rest_is_left(make_trainer, kind):
    make, name = KINDS[kind]
    parts, batches = layers(), loader()
    at = sizes(parts[0], parts[1], batches.dataset.tensors[0])
    module = Ranker(make(*parts))
    keep, monitor = KeepInFP32(), LossScaleMonitor()
    make_trainer(callbacks=[keep, monitor], scale=64.0).fit(module, batches)
    names = ["net." + f"cross.{number}" for number in range(DEPTH)]
    taken = {number for number in range(DEPTH) if name.format(names[number]) in keep.layers}
    beyond = {number for number, values in enumerate(at) if max(values) > 65_520}
    assert beyond <= taken  # whatever overflows
    # What is taken besides comes near, or feeds a product that does.
    for number in taken - {0}:
        assert max(at[number]) > LIMIT * 0.9
    assert {"net.first", "net.head"} <= set(keep.layers)
    assert set(keep.near_overflow) <= set(keep.layers)
    # A layer is measured and taken in before the next batch, and what lies behind it is seen then.
    assert monitor.history.skipped <= DEPTH
    assert all(math.isfinite(loss) for loss in module.losses[-2:])
    weight = {"own weights": "w", "between layers": "weight", "around a layer": "linear.weight"}[kind]
    last = module.gradients[-1]
    for number in range(DEPTH):
        gradient = last[f"{names[number]}.{weight}"]
        if number in taken and gradient.count_nonzero():
            assert not short(gradient)
    assert type(module.net.cross[-1]) in {nn.Linear, PlainCross, ParentCross}  # undone


def test_the_loss_becomes_that_of_a_float32_run(make_trainer):
    parts, batches = layers(), loader(20)
    module, whole = Ranker(Linears(*parts)), Ranker(Linears(*parts))
    make_trainer(callbacks=[KeepInFP32()], scale=64.0).fit(module, batches)
    make_trainer(precision="32-true").fit(whole, batches)
    assert module.losses[-5:] == pytest.approx(whole.losses[-5:], rel=0.02)


def test_a_layer_that_grows_later_is_taken_in_at_its_first_overflow(make_trainer, caplog):
    class Grows(Ranker):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 30:
                self.net[2].weight.data.mul_(1e6)
                self.net[4].weight.data.mul_(1e-6)

    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1), nn.Flatten(0))
    module, keep, monitor = Grows(net), KeepInFP32(), LossScaleMonitor()
    with caplog.at_level(logging.INFO):
        make_trainer(callbacks=[monitor, keep], scale=64.0).fit(module, loader(45))
    assert {"net.0", "net.2", "net.3", "net.4"} == set(keep.layers)
    assert set(keep.near_overflow) == {"net.2", "net.3"}
    assert [event.step for event in monitor.events] == [30, 31]  # told by the first, measured in the second
    told = [text for text in caplog.messages if "from here on too" in text]
    assert len(told) == 1
    assert "from here on too, for float16 ends at 65504: `net.2` (overflowed), `net.3` (overflowed)" in told[0]


def test_rows_that_are_not_finite_blame_no_layer(make_trainer):
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1), nn.Flatten(0))
    keep, monitor = KeepInFP32(), LossScaleMonitor()
    module = Ranker(net, bad=(3, 7, 12))
    make_trainer(callbacks=[keep, monitor]).fit(module, loader(20))
    assert monitor.history.skipped == 3
    assert set(keep.layers) == {"net.0", "net.4"}
    assert keep.near_overflow == {}


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({"precision": "bf16-mixed"}, {}),
        ({}, {"largest_activation": None}),
        ({}, {"modules": ["net.first", "net.head"]}),
    ],
    ids=["bfloat16", "edges alone", "named"],
)
def test_nothing_is_measured_where_it_is_not_asked_for(make_trainer, settings, arguments):
    keep, module = KeepInFP32(**arguments), Ranker(Linears(*layers()))
    make_trainer(callbacks=[keep], **settings).fit(module, loader())
    assert set(keep.layers) in ({"net.first", "net.head"}, {"net.first", "net.cross.0", "net.head"})
    assert keep.near_overflow == {}
    assert keep.state_dict()["measured"] == {}


def test_the_limit_must_be_positive():
    with pytest.raises(ConfigurationError, match="`largest_activation` must be positive, got 0"):
        KeepInFP32(largest_activation=0)


def test_a_run_with_a_smaller_limit_takes_in_more(make_trainer):
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1), nn.Flatten(0))
    for layer in list(net)[:4]:
        nn.init.orthogonal_(layer.weight, 2.0)
    for limit, wanted in ((1e-6, {"net.1", "net.2", "net.3"}), (1e6, set())):
        keep = KeepInFP32(largest_activation=limit)
        make_trainer(callbacks=[keep]).fit(Ranker(net), loader(3))
        assert set(keep.near_overflow) == wanted


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_fused_optimizers_and_accumulated_gradients(make_trainer, fused, accumulate):
    module, keep = Ranker(Linears(*layers()), fused=fused), KeepInFP32()
    make_trainer(callbacks=[keep], scale=64.0, accumulate_grad_batches=accumulate).fit(module, loader(20))
    assert "net.cross.5" in keep.near_overflow
    assert all(math.isfinite(loss) for loss in module.losses[-5:])


def test_manual_optimization(make_trainer):
    class Manual(Ranker):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers()
            for sign in (1.0, 2.0):
                optimizer.zero_grad()
                loss = (self(batch[0]).float() - batch[1]).square().mean() * sign
                self.losses.append(float(loss.detach()))
                self.manual_backward(loss)
                optimizer.step()

    module, keep = Manual(Linears(*layers())), KeepInFP32()
    make_trainer(callbacks=[keep], scale=64.0).fit(module, loader(20))
    assert "net.cross.5" in keep.near_overflow
    assert all(math.isfinite(loss) for loss in module.losses[-5:])


def test_a_compiled_network_is_taken_in_too(make_trainer):
    module, keep = Ranker(Linears(*layers())), KeepInFP32()
    module.run = torch.compile(module.net, backend="aot_eager")
    make_trainer(callbacks=[keep], scale=64.0).fit(module, loader(16))
    assert "net.cross.5" in keep.near_overflow
    assert all(math.isfinite(loss) for loss in module.losses[-5:])
    assert all(keep.verified[name] for name in keep.near_overflow if name in keep.verified)
    assert not short(module.gradients[-1]["net.cross.5.weight"])


class Late(Ranker):
    """A layer overflows from batch 12 on."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1), nn.Flatten(0)), rate=1e-3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        grown = self.net[1](self.net[0](batch[0])) * (1e5 if self.trainer.global_step >= 12 else 1.0)
        y = self.net[4](self.net[3](self.net[2](grown)))[:, 0]
        return (y.float() * 1e-4 - batch[1]).square().mean()


# Every batch is the same, so it does not matter which of them are repeated.
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.parametrize("stop", [12, 13, 14, 20])
def test_a_resumed_run_measures_and_keeps_the_same(make_trainer, stop):
    x = torch.randn(32, 4).repeat(30, 1)
    batches, start = DataLoader(TensorDataset(x, x.sum(1)), batch_size=32), Late().state_dict()
    runs = []
    for parts in ([30], [stop, 30]):
        path, steps = None, []
        for most in parts:
            module, keep = Late(), KeepInFP32()
            module.load_state_dict(start)
            trainer = make_trainer(callbacks=[keep], max_steps=most, max_epochs=None)
            trainer.fit(module, batches, ckpt_path=path, weights_only=True)
            trainer.save_checkpoint(path := f"{most}.ckpt")
            steps.append(trainer.global_step)
        runs.append((module.state_dict(), keep.state_dict()))
    assert runs[0][1] == runs[1][1]
    assert "net.2" in runs[0][1]["near_overflow"]
    assert all(torch.equal(runs[0][0][key], runs[1][0][key]) for key in start)


def test_layers_taken_in_are_kept_in_an_evaluation_from_the_checkpoint(make_trainer):
    parts, batches = layers(), loader(12)
    module, keep = Ranker(Linears(*parts)), KeepInFP32()
    trainer = make_trainer(callbacks=[keep], scale=64.0)
    trainer.fit(module, batches)
    trainer.save_checkpoint("run.ckpt")
    again = KeepInFP32()
    make_trainer(callbacks=[again]).validate(
        seen := Validated(Linears(*layers())), batches, ckpt_path="run.ckpt", weights_only=True, verbose=False
    )
    assert again.layers == keep.layers
    assert all(math.isfinite(loss) for loss in seen.losses)


def test_the_number_of_layers_is_logged_when_it_changes(make_trainer):
    seen: list[float] = []

    class See(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            seen.append(float(trainer.callback_metrics["float32_layers"]))

    keep = KeepInFP32()
    make_trainer(callbacks=[keep, See()], scale=64.0).fit(Ranker(Linears(*layers())), loader())
    assert seen[-1] == len(keep.layers)
    assert seen == sorted(seen)


def test_arithmetic_of_the_outermost_module_that_cannot_be_kept_is_told_once(make_trainer):
    class Pairs(Ranker):
        def forward(self, x: Tensor) -> Tensor:
            x0 = self.net[0](x)
            return self.net[1](x0 @ (x0.T @ x0))[:, 0]

    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    nn.init.orthogonal_(net[0].weight, 100.0)
    text = r"what goes into `net\.1` overflowed in float16, by arithmetic in the outermost module's own `forward`"
    with pytest.warns(LightningMPWarning, match=text) as told:
        make_trainer(callbacks=[KeepInFP32()]).fit(Pairs(net), loader())
    assert sum("outermost" in str(warning.message) for warning in told) == 1


def test_two_processes_keep_the_same_layers(tmp_path):
    script = Path(__file__).with_name("keep_in_two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=240, capture_output=True)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert {"1", "2"} <= {name.removeprefix("net.") for name in first["near_overflow"]}
    assert first["skipped"] <= 4


def test_the_report_says_why_a_layer_is_kept(make_trainer, tmp_path):
    keep = KeepInFP32()
    callbacks = [keep, PrecisionReport(tmp_path)]
    make_trainer(callbacks=callbacks, scale=64.0).fit(Ranker(Linears(*layers())), loader())
    (page,) = tmp_path.rglob("*.json")
    why = {row["layer"]: row["why"] for row in json.loads(page.read_text())["float32"]["layers"]}
    assert why["net.head"] == "input or output layer, found in one forward pass"
    assert why["net.cross.5"] == "overflowed in the forward pass"
    for name, size in keep.near_overflow.items():
        assert math.isinf(size) or why[name] == f"reached |x| = {size:.4g} in float16"


def test_names_with_brackets_are_names(make_trainer):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"in[0]": nn.Linear(4, 4), "mid[0]": nn.Linear(4, 4), "out[0]": nn.Linear(4, 1)})

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts.values():
                x = part(x)
            return x.squeeze(1)

    keep = KeepInFP32(largest_activation=1e-6)
    make_trainer(callbacks=[keep]).fit(Ranker(Named()), loader(4))
    assert keep.layers == ("net.parts.in[0]", "net.parts.mid[0]", "net.parts.out[0]")


class ByHand(nn.Module):
    """Shortens its input itself: with autocast off its weight does not fit."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4) * size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.mm(x.half(), self.weight)


def by_hand(size: float) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Identity(), ByHand(size), nn.Linear(4, 4), nn.Linear(4, 1), nn.Flatten(0))
    nn.init.constant_(net[3].weight, 1e-6)
    return net


def test_a_layer_that_cannot_run_in_float32_stays_as_it_was_and_is_named_once(make_trainer):
    module, batches, keep = Ranker(by_hand(20_000.0)), loader(30), KeepInFP32()
    with pytest.warns(LightningMPWarning, match=r"`net\.2` cannot run in float32 and stays as it was: .+") as told:
        make_trainer(callbacks=[keep], scale=64.0).fit(module, batches)
    assert len([warning for warning in told if "cannot run in float32" in str(warning.message)]) == 1
    assert "net.2" not in keep.layers
    assert "net.2" not in keep.verified
    assert {"net.0", "net.4"} <= set(keep.layers)
    assert type(module.net[2]) is ByHand
    assert keep.state_dict()["measured"]["closely_until"] < 30, "what cannot be helped is not measured for ever"
    other = Ranker(by_hand(20_000.0))
    make_trainer(callbacks=[KeepInFP32([name.replace(".", "[.]") for name in keep.layers])], scale=64.0).fit(
        other, batches
    )
    assert module.losses[5:] == pytest.approx(other.losses[5:], rel=1e-6)


def test_an_input_layer_that_cannot_run_in_float32_is_left_too(make_trainer):
    net = nn.Sequential(ByHand(1.0), nn.Linear(4, 4), nn.Linear(4, 1), nn.Flatten(0))
    module, keep = Ranker(net), KeepInFP32()
    with pytest.warns(LightningMPWarning, match=r"`net\.0` cannot run in float32"):
        make_trainer(callbacks=[keep]).fit(module, loader())
    assert keep.layers == ("net.2",)


def test_an_error_of_the_layer_s_own_is_raised(make_trainer):
    class Fails(ByHand):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("of its own")

    net = nn.Sequential(nn.Linear(4, 4), Fails(1.0), nn.Linear(4, 1), nn.Flatten(0))
    module = Ranker(net)
    with pytest.raises(RuntimeError, match="of its own"):
        make_trainer(callbacks=[KeepInFP32(["net[.]1"])]).fit(module, loader())
    assert type(module.net[1]) is Fails
