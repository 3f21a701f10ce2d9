from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.optim.parameter_groups import parameter_groups


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.bag = nn.Embedding(9, 4), nn.EmbeddingBag(9, 4)
        self.hidden, self.head = nn.Linear(4, 4), nn.Linear(4, 9)
        self.batch_norm, self.layer_norm, self.rms_norm = nn.BatchNorm1d(4), nn.LayerNorm(4), nn.RMSNorm(4)
        self.temperature = nn.Parameter(torch.ones(()))
        self.mix = nn.Parameter(torch.randn(3, 3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def names(net: nn.Module, group: dict) -> set[str]:
    wanted = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in net.named_parameters() if id(parameter) in wanted}


def test_only_matrices_decay():
    net = Net()
    decayed, kept = parameter_groups(net)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (1e-4, 0.0)
    assert names(net, decayed) == {"hidden.weight", "head.weight", "mix"}
    trained = {name for name, parameter in net.named_parameters() if parameter.requires_grad}
    assert names(net, kept) == trained - {"hidden.weight", "head.weight", "mix"}


def test_a_tied_weight_is_the_embeddings_and_stands_once():
    net = Net()
    net.head.weight = net.table.weight
    decayed, kept = parameter_groups(net)
    assert names(net, decayed) == {"hidden.weight", "mix"}
    assert sum(parameter is net.table.weight for parameter in kept["params"]) == 1


def test_rows_that_no_batch_has_stay_where_they_are():
    net = Net()
    before = net.table.weight.detach().clone()
    optimizer = torch.optim.AdamW(parameter_groups(net, weight_decay=0.5), lr=0.1)
    net.hidden(net.table(torch.tensor([1, 2]))).sum().backward()
    optimizer.step()
    rest = [0, *range(3, 9)]
    assert torch.equal(net.table.weight[rest], before[rest])
    assert not torch.equal(net.table.weight[1], before[1])


def test_an_empty_group_is_left_out():
    assert [group["weight_decay"] for group in parameter_groups(nn.Embedding(3, 2))] == [0.0]
    assert [group["weight_decay"] for group in parameter_groups(nn.Linear(3, 2, bias=False))] == [1e-4]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_wrong_decay_is_named(value):
    with pytest.raises(ConfigurationError, match=f"`weight_decay` must be 0 or more, got {value}"):
        parameter_groups(Net(), weight_decay=value)
