from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.networks.two_tower import TwoTower


def oracle(network, inputs, mixed):
    weights, logits = mixed.weights(network), []
    user = {"prefix": "user.embedding.", "ids": (0, 2), "lists": False, "dense": (0,)}
    item = {"prefix": "item.embedding.", "ids": (1, 3), "lists": True, "dense": (1, 2, 3, 4)}
    for row in range(len(inputs["ids"])):
        vectors = []
        for name, taken in (("user", user), ("item", item)):
            x = mixed.mlp(weights, f"{name}.deep.", mixed.joined(weights, inputs, row, **taken))
            vector = mixed.linear(weights, f"{name}.out", x)
            vectors.append(vector / np.linalg.norm(vector) if network.normalize else vector)
        logits.append(vectors[0] @ vectors[1] / network.temperature)
    return torch.tensor(np.array(logits))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("hidden", [(), (12, 7)])
def test_it_is_the_product_of_two_towers(mixed, hidden, normalize):
    network = TwoTower(mixed.schema, embedding_dim=5, hidden=hidden, temperature=0.2, normalize=normalize)
    inputs = mixed.batch()
    expected = oracle(mixed.trained_like(network), inputs, mixed)
    torch.testing.assert_close(network(inputs).double(), expected, rtol=1e-4, atol=1e-4)


def test_a_tower_looks_at_its_own_features_alone(mixed):
    network = mixed.trained_like(TwoTower(mixed.schema))
    one, other = mixed.batch(), mixed.batch()
    user = {"ids": (0, 2), "dense": (0,)}
    swapped = {name: tensor.clone() for name, tensor in other.items()}
    for name, columns in user.items():
        swapped[name][:, columns] = one[name][:, columns]
    torch.testing.assert_close(network.user_vectors(swapped), network.user_vectors(one), rtol=0, atol=0)
    torch.testing.assert_close(network.item_vectors(swapped), network.item_vectors(other), rtol=0, atol=0)
    assert network.item_vectors(one).norm(dim=1).allclose(torch.ones(101))


def test_half_precision_stays_within_the_bound_of_its_docstring(mixed, held):
    network = mixed.trained_like(TwoTower(mixed.schema))
    held.to_half_precision(network, mixed.batch(), units=4, scale=1 / network.temperature)


def test_it_does_what_every_network_must(mixed, held, tmp_path):
    small = TwoTower(mixed.schema, embedding_dim=2, hidden=(3,), output_dim=2, max_rows=4)
    held.to_any_scale(mixed.trained_like(TwoTower(mixed.schema)), lambda scale: mixed.batch(scale=scale))
    held.to_finite_differences(mixed.trained_like(small), mixed.batch(3))
    held.to_any_batch(small, mixed.batch)
    held.to_export(small, mixed.batch, tmp_path)


def test_a_vector_of_zeros_stays_one_and_has_a_gradient(mixed):
    network = TwoTower(mixed.schema, hidden=())
    with torch.no_grad():
        for parameter in network.user.out.parameters():
            parameter.zero_()
    logits = network(mixed.batch())
    logits.sum().backward()
    assert not logits.any()
    assert network.user.out.weight.grad.isfinite().all()


def test_mistakes_are_named(mixed, held):
    users = type(mixed.schema)(features=tuple(f for f in mixed.schema.features if f.role == "user"))
    network = TwoTower(mixed.schema)
    batch = mixed.batch(3)
    held.to_errors(
        {
            "the schema has no feature of role `item` that TwoTower could take": lambda: TwoTower(users),
            "`temperature` must be above 0, got 0.0": lambda: TwoTower(mixed.schema, temperature=0.0),
            "`output_dim` must be at least 1, got 0": lambda: TwoTower(mixed.schema, output_dim=0),
            "the batch has no `dense`; it has `ids`": lambda: network({"ids": batch["ids"]}),
        },
        ConfigurationError,
    )
    wrong = batch["ids"].clone()
    wrong[1, 3] = 3
    held.to_errors(
        {
            "feature `brand` has id 3 at row 1 of the batch, its table has 3 rows": lambda: network(
                {**batch, "ids": wrong}
            ),
            "`ids` is float32, ids must be int32 or int64": lambda: network({**batch, "ids": batch["ids"].float()}),
        },
        DataError,
    )
