from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError
from lightning_mp.float_formats import BFLOAT16, FLOAT16
from lightning_mp.networks.dcn_v2 import DCNv2
from lightning_mp.schema import Feature, FeatureSchema

SIZES = (50, 3, 1000, 7)
FORMATS = [(torch.float16, FLOAT16), (torch.bfloat16, BFLOAT16)]


def schema(indexed=4, dense=6):
    ids = (
        Feature(
            name=f"c{i}", kind="id", role="user", source_dtype="string", stored_dtype="int32", vocabulary_size=SIZES[i]
        )
        for i in range(indexed)
    )
    numbers = (
        Feature(name=f"d{i}", kind="numeric", role="item", source_dtype="double", stored_dtype="float32")
        for i in range(dense)
    )
    return FeatureSchema(features=(*ids, *numbers))


def batch(rows=257, scale=1.0, dtype=torch.int64):
    return {
        "ids": torch.stack([torch.randint(0, size, (rows,)) for size in SIZES], dim=1).to(dtype),
        "dense": torch.randn(rows, 6) * scale,
    }


def trained_like(network):
    """Tables of unit variance, as training makes them: freshly drawn ones would hide half the network."""
    with torch.no_grad():
        for table in network.embedding.tables:
            table.weight.normal_()
        for layer in network.cross.layers:
            layer.bias.normal_()
    return network


def oracle(network, inputs):
    """The paper's equations row by row in float64, from the weights alone."""
    weights = {name: value.double().numpy() for name, value in network.state_dict().items()}
    logits = []
    for ids, dense in zip(inputs["ids"].numpy(), inputs["dense"].double().numpy(), strict=True):
        looked_up = [weights[f"embedding.tables.{i}.weight"][row] for i, row in enumerate(ids)]
        x0 = np.concatenate([*looked_up, dense])
        x = x0
        for i in range(len(network.cross.layers)):
            matrix = weights[f"cross.layers.{i}.up.weight"]
            if f"cross.layers.{i}.down.weight" in weights:
                matrix = matrix @ weights[f"cross.layers.{i}.down.weight"]
            x = x0 * (matrix @ x + weights[f"cross.layers.{i}.bias"]) + x
        h = x0
        for i in range(len(network.deep.layers)):
            h = np.maximum(weights[f"deep.layers.{i}.weight"] @ h + weights[f"deep.layers.{i}.bias"], 0)
        logits.append(weights["head.weight"][0] @ np.concatenate([x, h]) + weights["head.bias"][0])
    return torch.tensor(np.array(logits))


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("cross_layers", [0, 1, 3])
def test_it_is_the_papers_formula(rank, cross_layers):
    network = trained_like(DCNv2(schema(), embedding_dim=5, cross_layers=cross_layers, rank=rank, hidden=(20, 9)))
    inputs = batch()
    logits = network(inputs)
    expected = oracle(network, inputs)
    assert (logits.dtype, logits.shape) == (torch.float32, (257,))
    torch.testing.assert_close(logits.double(), expected, rtol=2e-5, atol=2e-5 * float(expected.abs().max()))
    torch.testing.assert_close(network(batch_of(inputs, torch.int32)), logits, rtol=0, atol=0)


def batch_of(inputs, dtype):
    return {**inputs, "ids": inputs["ids"].to(dtype)}


@pytest.mark.parametrize("rank", [None, 8])
@pytest.mark.parametrize(("dtype", "form"), FORMATS)
def test_half_precision_stays_within_the_bound_of_its_docstring(dtype, form, rank):
    network = trained_like(DCNv2(schema(), rank=rank))
    inputs = batch()
    expected = oracle(network, inputs)
    bound = 4 * form.relative_step * float(expected.square().mean().sqrt() + 1)
    with torch.autocast("cpu", dtype=dtype):
        logits = network(inputs)
    assert logits.dtype == torch.float32
    assert float((logits - expected).detach().abs().max()) <= bound
    halves = copy.deepcopy(network).to(dtype)({**inputs, "dense": inputs["dense"].to(dtype)})
    assert halves.dtype == torch.float32
    assert float((halves - expected).detach().abs().max()) <= 4 * bound


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("dtype", "form"), FORMATS)
def test_logits_are_finite_and_right_on_inputs_of_any_scale(dtype, form, scale):
    network = trained_like(DCNv2(schema(), rank=None))
    inputs = batch(scale=scale)
    expected = oracle(network, inputs)
    with torch.autocast("cpu", dtype=dtype):
        logits = network(inputs)
    assert logits.isfinite().all()
    assert float((logits - expected).detach().abs().max()) <= 4 * form.relative_step * float(expected.abs().max() + 1)


@pytest.mark.parametrize(("dtype", "form"), FORMATS)
def test_gradients_in_half_precision_are_those_of_float64(dtype, form):
    network = trained_like(DCNv2(schema(), embedding_dim=4, hidden=(16,)))
    exact = copy.deepcopy(network).double()
    inputs = batch(64)
    with torch.autocast("cpu", dtype=dtype):
        loss = network(inputs).sum()
    loss.backward()
    exact({**inputs, "dense": inputs["dense"].double()}).sum().backward()
    for (name, parameter), reference in zip(network.named_parameters(), exact.parameters(), strict=True):
        error = (parameter.grad - reference.grad).norm() / reference.grad.norm()
        assert float(error) < 16 * form.relative_step, name


def test_gradients_are_those_of_finite_differences():
    network = trained_like(DCNv2(schema(), embedding_dim=2, rank=2, hidden=(5,), max_rows=4)).double()
    inputs = batch(3)
    names = list(dict(network.named_parameters()))

    def logits(dense, *parameters):
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(network, given, ({"ids": inputs["ids"], "dense": dense},))

    dense = inputs["dense"].double().requires_grad_()
    assert torch.autograd.gradcheck(logits, (dense, *network.parameters()))


def test_float16_batches_are_widened_before_anything_is_computed():
    network = trained_like(DCNv2(schema()))
    inputs = batch()
    half = {**inputs, "dense": inputs["dense"].half()}
    torch.testing.assert_close(network(half), network({**half, "dense": half["dense"].float()}), rtol=0, atol=0)


@pytest.mark.parametrize("left_out", ["ids", "dense"])
def test_one_kind_of_feature_is_enough(left_out):
    network = DCNv2(schema(**{"indexed" if left_out == "ids" else "dense": 0}), hidden=())
    inputs = batch(5)
    del inputs[left_out]
    assert network(inputs).shape == (5,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled_it_answers_and_learns_the_same(dtype):
    torch._dynamo.reset()
    network = trained_like(DCNv2(schema(), embedding_dim=4, hidden=(16,)))
    compiled = torch.compile(copy.deepcopy(network), backend="aot_eager", fullgraph=True)
    inputs = batch(64)
    for model in (network, compiled):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            model(inputs).mean().backward()
    for (name, a), b in zip(network.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    if dtype == torch.float16:
        head = compiled.head.weight.grad
        assert not torch.equal(head, head.half().float()), "the last layer's gradient came out of float16"


class ByTensor(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, ids, dense):
        return self.network({"ids": ids, "dense": dense})


def test_exported_it_answers_the_same_at_any_batch_size():
    network = trained_like(DCNv2(schema())).eval()
    inputs = batch(8)
    rows = torch.export.Dim("batch")
    shapes = {"ids": {0: rows}, "dense": {0: rows}}
    program = torch.export.export(ByTensor(network), (inputs["ids"], inputs["dense"]), dynamic_shapes=shapes)
    for size in (1, 2, 100):
        inputs = batch(size)
        torch.testing.assert_close(program.module()(inputs["ids"], inputs["dense"]), network(inputs))


def test_it_pickles_and_copies():
    network = DCNv2(schema())
    inputs = batch(4)
    for other in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        assert torch.equal(other(inputs), network(inputs))


def test_mistakes_are_named():
    history = Feature(
        name="seen", kind="sequence", role="user", source_dtype="string", stored_dtype="int32", vocabulary_size=9
    )
    label = Feature(name="y", kind="numeric", role="label", source_dtype="double", stored_dtype="float32")
    network = DCNv2(schema())
    for broken, problem in {
        lambda: DCNv2(FeatureSchema(features=(history,))): "DCNv2 takes no `sequence` feature, and `seen` is one",
        lambda: DCNv2(FeatureSchema(features=(label,))): "the schema has no feature that DCNv2 could take",
        lambda: DCNv2(schema(), cross_layers=-1): "`cross_layers` must not be negative, got -1",
        lambda: DCNv2(schema(), rank=0): "`rank` must be at least 1, got 0",
        lambda: DCNv2(schema(), hidden=(4, 0)): r"`hidden` must hold widths of at least 1, got \[4, 0\]",
        lambda: DCNv2(schema(), dropout=1.0): r"`dropout` must be in \[0, 1\), got 1.0",
        lambda: DCNv2(schema(), embedding_dim=0): "`embedding_dim` must be at least 1, got 0",
        lambda: network({"ids": batch(2)["ids"]}): "the batch has no `dense`; it has `ids`",
        lambda: network({**batch(2), "dense": torch.ones(2, 3)}): "`dense` has 3 columns, the schema has 6",
        lambda: network({**batch(2), "ids": batch(2)["ids"][:, :3]}): "`ids` has 3 columns, the schema has 4 indexed",
    }.items():
        with pytest.raises(ConfigurationError, match=problem):
            broken()


def test_names_and_shapes_of_the_weights_stay_those_of_older_checkpoints():
    network = DCNv2(schema(indexed=2, dense=1), embedding_dim=3, cross_layers=1, rank=2, hidden=(5,))
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == {
        "embedding.tables.0.weight": (50, 3),
        "embedding.tables.1.weight": (3, 3),
        "cross.layers.0.bias": (7,),
        "cross.layers.0.down.weight": (2, 7),
        "cross.layers.0.up.weight": (7, 2),
        "deep.layers.0.weight": (5, 7),
        "deep.layers.0.bias": (5,),
        "head.weight": (1, 12),
        "head.bias": (1,),
    }
