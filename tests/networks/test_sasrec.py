from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.networks.sasrec import SASRec
from lightning_mp.schema import FeatureSchema


def histories(rows=40, length=8, *, items=300, side="left"):
    """Of any length, none among them, with holes where an item is unknown."""
    ids = torch.randint(1, items, (rows, length)) * (torch.rand(rows, length) < 0.9)
    lengths = torch.randint(0, length + 1, (rows, 1))
    places = torch.arange(length)
    return ids * (places >= length - lengths if side == "left" else places < lengths)


def batch(rows=40, length=8, **how):
    return {"history": histories(rows, length, **how), "target": torch.randint(0, 300, (rows,))}


def trained_like(network):
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.weight.uniform_(0.5, 1.5)
                part.bias.normal_(std=0.1)
    return network.eval()


def norm(weights, name, x):
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def oracle_states(network, history, mixed):
    """The paper's layers, place by place and head by head, over one history without its padding's states."""
    weights = mixed.weights(network)
    history = history[-network.max_length :]
    length, width = len(history), network.items.embedding_dim
    places = weights["places.weight"][network.max_length - length :]
    known = [i for i in range(length) if history[i] != 0]
    state = {i: weights["items.weight"][history[i]] + places[i] for i in known}
    for n, block in enumerate(network.blocks):
        name, heads = f"blocks.{n}", block.attention.heads
        normed = {i: norm(weights, f"{name}.attention_norm", state[i]) for i in known}
        queries, keys, values = (
            {i: mixed.linear(weights, f"{name}.attention.{part}", normed[i]).reshape(heads, -1) for i in known}
            for part in ("query", "key", "value")
        )
        after = {}
        for i in known:
            seen = [j for j in known if j <= i]
            mixture = []
            for head in range(heads):
                scores = np.array([queries[i][head] @ keys[j][head] for j in seen]) / np.sqrt(width / heads)
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                mixture.append(sum(share * values[j][head] for share, j in zip(shares, seen, strict=True)))
            x = state[i] + np.concatenate(mixture)
            inner = np.maximum(mixed.linear(weights, f"{name}.up", norm(weights, f"{name}.forward_norm", x)), 0)
            after[i] = x + mixed.linear(weights, f"{name}.down", inner)
        state = after
    states = np.zeros((length, width))
    for i in known:
        states[i] = norm(weights, "norm", state[i])
    return states, (known[-1] if known else None)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("length", "heads", "blocks"), [(8, 1, 2), (5, 2, 1), (11, 4, 2)])
def test_it_is_the_papers_formula(mixed, length, heads, blocks, side):
    network = trained_like(SASRec(mixed.schema, max_length=8, embedding_dim=16, blocks=blocks, heads=heads))
    inputs = batch(length=length, side=side)
    states, logits = network.encode(inputs["history"]), network(inputs)
    assert (states.shape, logits.shape) == ((40, min(length, 8), 16), (40,))
    vectors = network.item_vectors()
    assert vectors.shape == (300, 16)
    for row in range(40):
        expected, newest = oracle_states(network, inputs["history"][row].numpy(), mixed)
        np.testing.assert_allclose(states[row].detach().numpy(), expected, rtol=1e-4, atol=1e-4)
        after = 0.0 if newest is None else expected[newest] @ vectors[inputs["target"][row]].detach().double().numpy()
        assert logits[row].item() == pytest.approx(after, rel=1e-4, abs=1e-4)


def test_nothing_flows_back_in_time(mixed):
    network = trained_like(SASRec(mixed.schema, max_length=8))
    history = torch.randint(1, 300, (5, 8))
    later = history.clone()
    later[:, 5:] = torch.randint(1, 300, (5, 3))
    torch.testing.assert_close(network.encode(later)[:, :5], network.encode(history)[:, :5])


def test_padding_and_unknown_items_have_no_say_and_no_gradient(mixed):
    network = trained_like(SASRec(mixed.schema, max_length=8))
    inputs = {"history": torch.zeros(4, 8, dtype=torch.int64), "target": torch.tensor([0, 1, 2, 299])}
    logits = network(inputs)
    assert not logits.any()
    network.train()(batch()).square().sum().backward()
    assert not network.items.weight.grad[0].any()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def test_half_precision_stays_within_the_bound_of_its_docstring(mixed, held):
    held.to_half_precision(trained_like(SASRec(mixed.schema)), batch(length=20), units=4)


def test_it_does_what_every_network_must(mixed, held, tmp_path):
    small = SASRec(mixed.schema, max_length=4, embedding_dim=4, heads=2, blocks=1, dropout=0.0)
    items = FeatureSchema(features=tuple(f for f in mixed.schema.features if f.name == "brand"))
    tiny = SASRec(
        FeatureSchema(features=tuple(type(f)(**{**_fields(f), "kind": "id"}) for f in items.features)),
        max_length=3, embedding_dim=4, heads=2, blocks=1, dropout=0.0,
    )  # fmt: skip
    inputs = {"history": torch.tensor([[0, 1, 2], [2, 0, 1], [0, 0, 0]]), "target": torch.tensor([1, 2, 1])}
    held.to_finite_differences(trained_like(tiny), inputs)
    held.to_any_batch(small, lambda rows: batch(rows, 4))
    held.to_export(trained_like(small), lambda rows: batch(rows, 4), tmp_path)


def _fields(feature):
    return {name: getattr(feature, name) for name in feature.__dataclass_fields__}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_embeddings_of_any_scale_are_finite_in_float16(mixed, held, scale):
    network = trained_like(SASRec(mixed.schema))
    with torch.no_grad():
        network.items.weight *= scale
    held.to_any_scale(network, lambda _: batch())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dropout_trains_in_every_precision(mixed, dtype):
    network = SASRec(mixed.schema, dropout=0.5).train()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        network(batch()).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def test_mistakes_are_named(mixed, held):
    users = FeatureSchema(features=tuple(f for f in mixed.schema.features if f.role == "user"))
    network = SASRec(mixed.schema)
    inputs = batch(3)
    held.to_errors(
        {
            "SASRec takes one feature of kind `id` and role `item`, the schema has none": lambda: SASRec(users),
            "`blocks` must be at least 1, got 0": lambda: SASRec(mixed.schema, blocks=0),
            "`heads` must divide the width of 64, got 3": lambda: SASRec(mixed.schema, heads=3),
            r"`dropout` must be in \[0, 1\), got 1.0": lambda: SASRec(mixed.schema, dropout=1.0),
            "the batch has no `history`; it has `target`": lambda: network({"target": inputs["target"]}),
        },
        ConfigurationError,
    )
    held.to_errors(
        {
            "feature `item` has id 300 at row 0 of the batch": lambda: network(
                {**inputs, "history": inputs["history"] * 0 + 300}
            ),
            "feature `item` has id -1 at row 0 of the batch": lambda: network(
                {**inputs, "target": inputs["target"] * 0 - 1}
            ),
            "`history` is float64, ids must be int32 or int64": lambda: network.encode(inputs["history"].double()),
        },
        DataError,
    )
