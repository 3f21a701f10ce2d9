from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.networks.deep_fm import DeepFM


def oracle(network, inputs, mixed):
    """The paper's equations: a weight of every value, the product of every two embeddings, a deep network."""
    weights, logits = mixed.weights(network), []
    columns = network.embedding.embedding_dim
    for row in range(len(inputs["ids"])):
        joined = mixed.joined(weights, inputs, row)
        fields, dense = joined[: 5 * columns].reshape(5, columns), joined[5 * columns :]
        terms = [*fields, *(weights["numbers"][:, j] * value for j, value in enumerate(dense))]
        logit = weights["bias"] + sum(term[-1] for term in terms)
        logit += sum(a[:-1] @ b[:-1] for a, b in combinations(terms[:5], 2))
        for i, j in combinations(range(len(terms)), 2):
            if j >= 5:
                logit += terms[i][:-1] @ terms[j][:-1]
        if network.deep is not None:
            x = np.concatenate([fields[:, :-1].ravel(), dense])
            logit += mixed.linear(weights, "head", mixed.mlp(weights, "deep.", x))[0]
        logits.append(logit)
    return torch.tensor(np.array(logits))


@pytest.mark.parametrize("hidden", [(), (11, 6)])
@pytest.mark.parametrize("fused", [False, True])
def test_it_is_the_papers_formula(mixed, hidden, fused):
    network = mixed.trained_like(DeepFM(mixed.schema, embedding_dim=5, hidden=hidden))
    with torch.no_grad():
        network.numbers.normal_()
        network.bias.fill_(0.3)
    inputs = mixed.batch()
    expected = oracle(network, inputs, mixed)
    if fused:
        other = DeepFM(mixed.schema, embedding_dim=5, hidden=hidden, fused=True)
        other.load_state_dict(network.state_dict())
        network = other
    torch.testing.assert_close(network(inputs).double(), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("kinds", [("id", "categorical"), ("numeric", "vector"), ("multi_categorical",)])
def test_one_kind_of_feature_is_enough(mixed, kinds):
    schema = type(mixed.schema)(features=tuple(f for f in mixed.schema.features if f.kind in kinds))
    inputs = mixed.batch(7)
    assert DeepFM(schema)(inputs).shape == (7,)
    assert DeepFM(schema, hidden=())(inputs).shape == (7,)


def test_half_precision_stays_within_the_bound_of_its_docstring(mixed, held):
    held.to_half_precision(mixed.trained_like(DeepFM(mixed.schema)), mixed.batch(), units=1)


def test_it_does_what_every_network_must(mixed, held, tmp_path):
    small = DeepFM(mixed.schema, embedding_dim=2, hidden=(3,), max_rows=4)
    held.to_any_scale(mixed.trained_like(DeepFM(mixed.schema)), lambda scale: mixed.batch(scale=scale))
    held.to_finite_differences(mixed.trained_like(small), mixed.batch(3))
    held.to_any_batch(small, mixed.batch)
    held.to_export(small, mixed.batch, tmp_path)


def test_mistakes_are_named(mixed, held):
    network, batch = DeepFM(mixed.schema), mixed.batch(3)
    held.to_errors(
        {
            "the schema has no feature that DeepFM could take": lambda: DeepFM(type(mixed.schema)(features=())),
            "`embedding_dim` must be at least 1, got 0": lambda: DeepFM(mixed.schema, embedding_dim=0),
            "the batch has no `multi`; it has `ids`": lambda: network({"ids": batch["ids"]}),
            "`ids` has shape": lambda: network({**batch, "ids": batch["ids"][:, 0]}),
        },
        ConfigurationError,
    )
    held.to_errors({"`ids` is float16": lambda: network({**batch, "ids": batch["ids"].half()})}, DataError)
