from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_mp.errors import ConfigurationError
from lightning_mp.networks.tabm import TabM


def oracle(network, inputs, mixed):
    """Each member as a perceptron of its own, with the matrices that the paper's equation 5 gives it."""
    weights, members = mixed.weights(network), []
    for row in range(len(inputs["ids"])):
        first, answers = mixed.joined(weights, inputs, row), []
        for k in range(network.heads.members):
            x = first
            for n in range(len(network.layers)):
                layer = {name: weights[f"layers.{n}.{name}"] for name in ("weight", "bias")}
                r, s = weights[f"layers.{n}.input_factors"][k], weights[f"layers.{n}.output_factors"][k]
                own = layer["weight"] * np.outer(s, r)
                x = np.maximum(own @ x + layer["bias"][k], 0)
            answers.append(weights["heads.weight"][k] @ x + weights["heads.bias"][k])
        members.append(answers)
    return np.array(members)


def apart(network):
    with torch.no_grad():
        for layer in network.layers:
            layer.input_factors.normal_()
            layer.output_factors.normal_()
            layer.bias.normal_(std=0.1)
    return network


@pytest.mark.parametrize(("members", "hidden"), [(1, (7,)), (5, (9, 6))])
def test_it_is_the_papers_formula(mixed, members, hidden):
    network = apart(mixed.trained_like(TabM(mixed.schema, members=members, hidden=hidden)))
    inputs = mixed.batch()
    expected = oracle(network, inputs, mixed)
    np.testing.assert_allclose(network.member_logits(inputs).detach().numpy(), expected, rtol=1e-4, atol=1e-4)
    mean = (1 / (1 + np.exp(-expected))).mean(axis=1)
    np.testing.assert_allclose(network(inputs).detach().numpy(), np.log(mean / (1 - mean)), rtol=1e-4, atol=1e-4)


def test_members_begin_alike_but_for_the_first_signs_and_the_heads(mixed):
    network = TabM(mixed.schema, members=4)
    first, second = network.layers
    assert set(first.input_factors.detach().unique().tolist()) == {-1.0, 1.0}
    assert (first.output_factors == 1).all()
    assert (second.input_factors == 1).all()
    assert (first.bias == first.bias[0]).all()
    assert network.heads.weight.unique(dim=0).shape[0] == 4


def test_a_loss_of_each_member_trains_each_alone(mixed):
    """With their mean loss, a member's head has the gradient it would have without the others, divided by K."""
    network = mixed.trained_like(TabM(mixed.schema, members=3, hidden=(8,)))
    inputs, labels = mixed.batch(), torch.randint(0, 2, (101,)).float()
    logits = network.member_logits(inputs)
    binary_cross_entropy_with_logits(logits, labels.unsqueeze(1).expand_as(logits)).backward()
    together = network.heads.weight.grad.clone()
    network.zero_grad()
    binary_cross_entropy_with_logits(network.member_logits(inputs)[:, 1], labels).backward()
    torch.testing.assert_close(together[1], network.heads.weight.grad[1] / 3)


def test_certain_members_leave_a_finite_logit(mixed):
    network = TabM(mixed.schema, members=2)
    with torch.no_grad():
        network.heads.weight.zero_()
        for bias, expected in (((300.0, 300.0), 300.0), ((-300.0, -300.0), -300.0), ((300.0, -300.0), 0.0)):
            network.heads.bias.copy_(torch.tensor(bias))
            torch.testing.assert_close(network(mixed.batch(2)), torch.full((2,), expected))


def test_half_precision_stays_within_the_bound_of_its_docstring(mixed, held):
    held.to_half_precision(mixed.trained_like(TabM(mixed.schema, members=8)), mixed.batch(), units=1)


def test_it_does_what_every_network_must(mixed, held, tmp_path):
    small = TabM(mixed.schema, members=2, embedding_dim=2, hidden=(3,), max_rows=4)
    large = mixed.trained_like(TabM(mixed.schema, members=4))
    held.to_any_scale(large, lambda scale: mixed.batch(scale=scale))
    held.to_finite_differences(mixed.trained_like(small), mixed.batch(3))
    held.to_any_batch(small, mixed.batch)
    held.to_export(small, mixed.batch, tmp_path)


def test_mistakes_are_named(mixed, held):
    held.to_errors(
        {
            "`members` must be at least 1, got 0": lambda: TabM(mixed.schema, members=0),
            r"`hidden` must hold widths of at least 1, got \[\]": lambda: TabM(mixed.schema, hidden=()),
            r"`dropout` must be in \[0, 1\), got -0.1": lambda: TabM(mixed.schema, dropout=-0.1),
        },
        ConfigurationError,
    )
