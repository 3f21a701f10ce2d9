from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lightning_mp.export import core_graph
from lightning_mp.export.core_graph import write_core
from lightning_mp.export.half_tables import HalfTable, halve_tables
from lightning_mp.hardware.session import open_session


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


RESIDENT = """
import sys
import numpy as np
from lightning_mp.hardware.session import open_session

def dirty():
    with open('/proc/self/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('Private_Dirty')) / 1024

# The first session of a process maps the runtime's own code, which is no model's.
first = open_session(sys.argv[1], 'cpu')
first.run(None, {'ids': np.zeros((1, 1), dtype=np.int64)})
before = dirty()
session = open_session(sys.argv[2], 'cpu')
session.run(None, {'ids': np.zeros((1, 1), dtype=np.int64)})
print(dirty() - before)
"""


class Lookup(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(rows, 16), nn.Linear(16, 1)

    def forward(self, batch):
        return self.head(self.table(batch["ids"][:, 0])).squeeze(1)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup here")
def test_a_process_that_holds_the_file_has_half_the_private_memory(tmp_path):
    rows, sample = 300_000, {"ids": torch.zeros(2, 1, dtype=torch.int64)}
    half = Lookup(rows)
    halve_tables(half)
    for name, module in (("tiny", Lookup(4)), ("single", Lookup(rows)), ("half", half)):
        write_core(module.eval(), {"ids": [rows]}, sample, tmp_path / f"{name}.onnx")
    held = {}
    for name in ("single", "half"):
        command = [sys.executable, "-c", RESIDENT, str(tmp_path / "tiny.onnx"), str(tmp_path / f"{name}.onnx")]
        held[name] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert held["single"] > 0.9 * rows * 16 * 4 / 2**20
    assert held["half"] <= 0.55 * held["single"]
    sizes = [(tmp_path / f"{name}.onnx").stat().st_size for name in ("single", "half")]
    assert sizes[1] <= 0.51 * sizes[0]


def test_a_table_lies_outside_of_the_file_in_either_precision_so_that_it_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(core_graph, "EXTERNAL_FROM", 3 * 1000 * 16)  # between the sizes of the two
    half = Lookup(1000)
    halve_tables(half)
    for name, module in (("single", Lookup(1000)), ("half", half)):
        path = tmp_path / name / "model.onnx"
        path.parent.mkdir()
        write_core(module.eval(), {"ids": [1000]}, {"ids": torch.zeros(2, 1, dtype=torch.int64)}, path)
        assert (path.parent / "model.onnx.data").is_file()
        open_session(path, "cpu")
