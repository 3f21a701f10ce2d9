from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.export.half_layers import half_weights, halve_layers
from lightning_mp.export.layer_verdicts import layer_verdicts
from lightning_mp.export.precision_policy import PrecisionPolicy


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 1)

    def forward(self, batch):
        return self.head(self.norm(self.middle(torch.relu(self.first(batch["x"]))))).squeeze(1)


def rows(scale: float = 1.0) -> EncodedRows:
    return EncodedRows.of({"x": (np.random.default_rng().normal(size=(40, 3)) * scale).astype(np.float32)})


def judged(module: nn.Module, given: EncodedRows | None = None, **settings: object):
    named = dict.fromkeys((name for name, _ in module.named_modules()), 1.0)
    return layer_verdicts(module.eval(), given or rows(), named, PrecisionPolicy(file="fp16-mixed", **settings))  # type: ignore[arg-type]


def test_input_and_output_layers_and_norms_stay_and_the_middle_moves_as_one():
    module, given = Tower(), rows()
    verdicts = judged(module, given)
    assert verdicts.reasons == {"first": "an input layer", "middle.0": "", "middle.2": "", "head": "an output layer"}
    with torch.no_grad():
        single = module(given.tensors())
        moved = halve_layers(module, verdicts, given.tensors())
        half = module(given.tensors())
    assert moved == ("middle",)
    assert half_weights(module, moved) == {"middle.0.weight", "middle.0.bias", "middle.2.weight", "middle.2.bias"}
    assert module.norm.weight.dtype == module.first.weight.dtype == half.dtype == torch.float32
    assert 0 < (half - single).abs().max() < 0.02


def test_what_is_too_large_stays_and_says_how_large():
    module = Tower()
    with torch.no_grad():
        module.middle[2].weight[0, 0] = 9000.0
    assert judged(module).reasons["middle.2"] == "its largest weight is 9000; float16 ends at 65504"
    reason = judged(Tower(), rows(1e5), keep_in_fp32=()).reasons["first"]
    assert reason.startswith("it reaches |x| = ")
    assert judged(Tower(), keep_in_fp32=("mid*", "@output")).reasons == {
        "first": "", "middle.0": "kept by name", "middle.2": "kept by name", "head": "an output layer",
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match="matches `tail`"):
        judged(Tower(), keep_in_fp32=("tail",))


def test_numbers_that_are_not_finite_stay_in_float32():
    broken = rows()
    broken.others["x"][3, 1] = np.nan
    assert "|x| = inf" in judged(Tower(), broken, keep_in_fp32=()).reasons["first"]


def test_layers_that_are_shared_own_or_never_called_stay():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight
            self.own = type("Doubled", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x) * 2})(3, 3)
            self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
            self.head = nn.Linear(3, 1)

        def forward(self, batch):
            x = self.own(self.two(self.one(batch["x"]))).unsqueeze(1)
            return self.head(self.attention(x, x, x)[0]).flatten()

    reasons = judged(Odd(), keep_in_fp32=()).reasons
    assert reasons["one"] == "it shares weights with `two`"
    assert reasons["own"] == "`Doubled` has a `forward` of its own"
    assert reasons["attention.out_proj"].endswith(("forward` of its own", "used without a call of it"))
    assert reasons["head"] == ""


def test_a_block_that_does_not_run_in_float16_moves_layer_by_layer():
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.weight = nn.Linear(8, 8), torch.eye(8)

        def forward(self, x):
            return self.inner(x) @ self.weight  # float32, whatever the layers are

    module = Tower()
    module.middle = nn.Sequential(Stubborn(), nn.ReLU())
    module.eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    given = rows()
    moved = halve_layers(module, judged(module, given), given.tensors())
    assert moved == ("middle.0.inner",)
    for name, tensor in module.state_dict().items():
        expected = before[name].half() if name.startswith("middle.0.inner.") else before[name]
        assert torch.equal(tensor, expected), name
