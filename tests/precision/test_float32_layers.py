from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.precision.float32_layers import Float32Layers

LAYERS = {
    "linear": (lambda: nn.Linear(6, 6), (2, 6)),
    "conv": (lambda: nn.Conv1d(6, 6, 3), (2, 6, 6)),
    "gru": (lambda: nn.GRU(6, 6), (2, 6)),
    "attention": (lambda: nn.MultiheadAttention(6, 2), (3, 2, 6)),
    "block": (lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)), (2, 6)),
}


def call(layer, x):
    y = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_output_and_gradients_equal_those_without_autocast(name, dtype):
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    call(layer, x.to(dtype).float()).square().mean().backward()
    wanted = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    kept = Float32Layers({name: layer})
    with torch.autocast("cpu", dtype=dtype):
        y = call(layer, x.to(dtype))
    assert y.dtype is torch.float32
    y.square().mean().backward()
    for gradient, expected in zip((p.grad for p in layer.parameters()), wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    kept.release()
    assert type(layer) is type(make())


def test_outside_of_autocast_nothing_changes_not_even_for_half_weights():
    layer = nn.Linear(4, 4).bfloat16()
    kept = Float32Layers({"layer": layer})
    assert layer(torch.randn(2, 4).bfloat16()).dtype is torch.bfloat16
    kept.release()


def test_state_dict_isinstance_and_names_stay():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before, text = net.state_dict(), repr(net)
    kept = Float32Layers({"0": net[0]})
    assert isinstance(net[0], nn.Linear)
    assert repr(net) == text
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), before.values(), strict=True))
    net.load_state_dict(before)
    kept.release()
    kept.release()
    assert type(net[0]) is nn.Linear


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_copy_has_its_own_class_and_weights(how, name):
    make, shape = LAYERS[name]
    layer = make()
    kept = Float32Layers({name: layer})
    if how == "deepcopy":
        other = copy.deepcopy(layer)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(layer))
    else:
        torch.save(layer, file := io.BytesIO())
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert type(other) is type(make())
    x = torch.randn(shape)
    before = call(other, x)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert torch.equal(call(other, x), before)
    kept.release()


def test_tied_weights_stay_tied_through_a_copy():
    net = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    net["b"].weight = net["a"].weight
    kept = Float32Layers(dict(net.items()))
    other = copy.deepcopy(net)
    assert other["a"].weight is other["b"].weight
    kept.release()


def test_an_average_of_weights_is_its_own():
    net = nn.Sequential(nn.Linear(3, 3))
    kept = Float32Layers({"0": net[0]})
    average = torch.optim.swa_utils.AveragedModel(net)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    average.update_parameters(net)
    assert type(average.module[0]) is nn.Linear
    assert average.module[0].weight is not net[0].weight
    kept.release()


def test_what_cannot_be_kept_is_named():
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x
    with pytest.raises(ConfigurationError, match="`head` has a `forward` of its own, set on the instance"):
        Float32Layers({"head": patched})
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.script"):
        scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(ConfigurationError, match="`head` is a TorchScript module"):
        Float32Layers({"head": scripted})


def test_one_full_graph_is_refused_with_the_reason():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    kept = Float32Layers({"1": net[1]})
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(Exception, match="kept in float32"):
        compiled(torch.ones(2, 3))
    kept.release()
