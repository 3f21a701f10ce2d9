from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_mp.export.half_tables import HalfTable, halve_tables


def test_a_halved_table_answers_in_float32_what_float16_holds():
    network = nn.ModuleDict({"user": nn.Embedding(50, 8), "head": nn.Linear(8, 1)})
    weight = network["user"].weight.detach().clone()
    assert halve_tables(network) == {"user": ""}
    ids = torch.randint(0, 50, (20, 3))
    answer = network["user"](ids)
    assert answer.dtype == torch.float32
    expected = torch.from_numpy(weight.numpy().astype("float16").astype("float32"))[ids]
    torch.testing.assert_close(answer, expected, rtol=0, atol=0)
    assert network["head"].weight.dtype == torch.float32


@pytest.mark.parametrize("value", [65505.0, float("inf"), float("nan")])
def test_a_table_beyond_float16_stays_and_says_so(value):
    network = nn.Sequential(nn.Embedding(4, 2))
    with torch.no_grad():
        network[0].weight[2, 1] = value
    assert f"{value:g}, float16 ends at 65504" in halve_tables(network)["0"]
    assert not isinstance(network[0], HalfTable)


def test_tables_that_do_more_than_look_up_stay():
    class Scaled(nn.Embedding):
        def forward(self, x):
            return super().forward(x) * 2

    network = nn.Sequential(Scaled(4, 2), nn.Embedding(4, 2, max_norm=1.0))
    verdicts = halve_tables(network)
    assert all("more than look up" in verdict for verdict in verdicts.values())
    assert list(verdicts) == ["0", "1"]


def test_padding_rows_stay_what_they_are():
    network = nn.Sequential(nn.Embedding(4, 2, padding_idx=0))
    halve_tables(network)
    assert network[0](torch.tensor([0])).tolist() == [[0.0, 0.0]]
