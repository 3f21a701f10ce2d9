from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.networks.mmoe import MMoE


class OneTask(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, batch):
        return self.network(batch)[:, 1]


def oracle(network, inputs, mixed):
    """Equations 4 to 7 of the paper, row by row."""
    weights, logits = mixed.weights(network), []
    for row in range(len(inputs["ids"])):
        x = mixed.joined(weights, inputs, row)
        experts = [mixed.mlp(weights, f"experts.{k}.", x) for k in range(len(network.experts))]
        answers = []
        for task in range(len(network.tasks)):
            gate = np.exp(mixed.linear(weights, f"gates.{task}", x))
            mixture = sum(g * expert for g, expert in zip(gate / gate.sum(), experts, strict=True))
            answers.append(mixed.linear(weights, f"heads.{task}", mixed.mlp(weights, f"towers.{task}.", mixture))[0])
        logits.append(answers)
    return torch.tensor(np.array(logits))


@pytest.mark.parametrize(("experts", "expert_hidden", "tower_hidden"), [(1, (7,), ()), (3, (9, 6), (5, 4))])
def test_it_is_the_papers_formula(mixed, experts, expert_hidden, tower_hidden):
    network = mixed.trained_like(
        MMoE(mixed.schema, tasks=2, experts=experts, expert_hidden=expert_hidden, tower_hidden=tower_hidden)
    )
    inputs = mixed.batch()
    torch.testing.assert_close(network(inputs).double(), oracle(network, inputs, mixed), rtol=1e-4, atol=1e-4)


def test_columns_are_the_tasks_in_order(mixed):
    network = mixed.trained_like(MMoE(mixed.schema, tasks=["click", "cart", "order"]))
    inputs = mixed.batch()
    before = network(inputs)
    with torch.no_grad():
        network.heads[network.tasks.index("cart")].bias += 1.0
    torch.testing.assert_close(network(inputs) - before, torch.tensor([0.0, 1.0, 0.0]).expand(101, 3))
    assert MMoE(mixed.schema, tasks=2).tasks == ("task_0", "task_1")


def test_half_precision_stays_within_the_bound_of_its_docstring(mixed, held):
    held.to_half_precision(mixed.trained_like(MMoE(mixed.schema, tasks=3)), mixed.batch(), units=1)


def test_it_does_what_every_network_must(mixed, held, tmp_path):
    small = MMoE(mixed.schema, tasks=2, embedding_dim=2, experts=2, expert_hidden=(3,), tower_hidden=(2,), max_rows=4)
    large = mixed.trained_like(MMoE(mixed.schema, tasks=2))
    held.to_any_scale(large, lambda scale: mixed.batch(scale=scale))
    held.to_finite_differences(mixed.trained_like(small), mixed.batch(3))
    held.to_any_batch(small, mixed.batch, shape=(2,))
    held.to_export(OneTask(small), mixed.batch, tmp_path)


def test_gates_stay_in_float32(mixed):
    network = mixed.trained_like(MMoE(mixed.schema, tasks=2))
    with torch.autocast("cpu", dtype=torch.float16):
        network(mixed.batch()).sum().backward()
    gradient = network.gates[0].weight.grad
    assert not torch.equal(gradient, gradient.half().float())


def test_mistakes_are_named(mixed, held):
    network = MMoE(mixed.schema, tasks=2)
    batch = mixed.batch(3)
    held.to_errors(
        {
            r"`tasks` must be different names or their number, got \[\]": lambda: MMoE(mixed.schema, tasks=[]),
            "`tasks` must be different names or their number, got 0": lambda: MMoE(mixed.schema, tasks=0),
            "`tasks` must be different names or their number, got 'click'": lambda: MMoE(mixed.schema, tasks="click"),
            r"number, got \['a', 'a'\]": lambda: MMoE(mixed.schema, tasks=["a", "a"]),
            "`experts` must be at least 1, got 0": lambda: MMoE(mixed.schema, tasks=2, experts=0),
            "`dense` has 4 columns, the schema has 5": lambda: network({**batch, "dense": batch["dense"][:, :4]}),
        },
        ConfigurationError,
    )
    held.to_errors(
        {"feature `tags` has id -1 at row 0": lambda: network({**batch, "multi": batch["multi"] * 0 - 1})}, DataError
    )
