from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.export import core_graph
from lightning_mp.export.core_graph import write_core
from lightning_mp.export.encoded_rows import EncodedRows, session_logits
from lightning_mp.export.graph_precision import check_precision, initializer_types
from lightning_mp.hardware.session import open_session


class Fused(nn.Module):
    """One table for all fields, addressed by offsets: an id of one field can reach into the next."""

    def __init__(self, sizes: tuple[int, ...], dense: int = 2) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(sizes)[:-1]]))
        self.table = nn.Embedding(sum(sizes), 3)
        self.head = nn.Linear(3 * len(sizes) + dense, 1)

    def forward(self, batch):
        looked_up = self.table(batch["ids"] + self.offsets).flatten(1)
        return self.head(torch.cat([looked_up, batch["dense"]], dim=1)).squeeze(1)


def sample(rows: int, sizes: tuple[int, ...]) -> EncodedRows:
    rng = np.random.default_rng()
    ids = np.stack([rng.integers(0, size, rows) for size in sizes], axis=1)
    return EncodedRows(ids, rng.normal(size=(rows, 2)).astype(np.float32))


def test_ids_outside_of_their_own_table_read_row_0_of_it(tmp_path, recwarn):
    sizes = (5, 7, 2)
    network = Fused(sizes).eval()
    write_core(network, {"ids": sizes}, sample(4, sizes).tensors(), tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    rows = sample(64, sizes)
    rows.ids[::2, 0] = 5  # in the fused table: row 0 of the next field
    rows.ids[1::2, 1] = -1
    rows.ids[5, 2] = 2**62
    clean = np.where((rows.ids < 0) | (rows.ids >= np.array(sizes)), 0, rows.ids)
    with torch.no_grad():
        expected = network(EncodedRows(clean, rows.dense).tensors()).numpy()
    np.testing.assert_allclose(session_logits(session, rows), expected, atol=1e-6)
    assert not [w for w in recwarn if "torch" in str(w.filename)]


def test_names_batch_and_outputs_are_ours_and_nothing_of_this_machine_is_in_the_file(tmp_path, capfd, caplog):
    write_core(Fused((4,)).eval(), {"ids": [4]}, sample(3, (4,)).tensors(), tmp_path / "model.onnx")
    session = open_session(tmp_path / "model.onnx")
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
        ("ids", "tensor(int64)", ["batch", 1]),
        ("dense", "tensor(float)", ["batch", 2]),
    ]
    assert [(o.name, o.type, o.shape) for o in session.get_outputs()] == [
        ("logit", "tensor(float)", ["batch"]),
        ("score", "tensor(float)", ["batch"]),
    ]
    for rows in (1, 2, 9):
        feeds = sample(rows, (4,)).feeds
        logit, score = session.run(None, feeds)
        np.testing.assert_allclose(score, 1 / (1 + np.exp(-logit.astype(np.float64))), atol=1e-6)
    content = (tmp_path / "model.onnx").read_bytes()
    assert b"site-packages" not in content
    assert __file__.encode() not in content
    assert not (tmp_path / "model.onnx.data").exists()
    assert "table.weight" in initializer_types(tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_large_weights_stand_in_a_file_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(core_graph, "EXTERNAL_FROM", 100)
    write_core(Fused((40,)).eval(), {"ids": [40]}, sample(3, (40,)).tensors(), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx.data").stat().st_size >= 40 * 3 * 4
    assert open_session(tmp_path / "model.onnx").run(["score"], sample(5, (40,)).feeds)[0].shape == (5,)


def test_a_caller_s_autocast_does_not_get_into_the_file(tmp_path):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        write_core(Fused((4,)).eval(), {"ids": [4]}, sample(3, (4,)).tensors(), tmp_path / "model.onnx")
    check_precision(tmp_path / "model.onnx", frozenset())


def test_an_autocast_region_inside_forward_is_refused(tmp_path):
    class Half(Fused):
        def forward(self, batch):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(batch).float()

    write_core(Half((4,)).eval(), {"ids": [4]}, sample(3, (4,)).tensors(), tmp_path / "model.onnx")
    with pytest.raises(ConfigurationError, match="casts to BFLOAT16: `forward` opens an autocast region"):
        check_precision(tmp_path / "model.onnx", frozenset())


@pytest.mark.parametrize("answer", [lambda x: x.unsqueeze(1), lambda x: x.half(), lambda x: x.sum()])
def test_another_answer_than_one_float32_logit_a_row_is_refused(tmp_path, answer):
    class Other(Fused):
        def forward(self, batch):
            return answer(super().forward(batch))

    with pytest.raises(ConfigurationError, match="`Other`: logit of 3 rows is"):
        write_core(Other((4,)).eval(), {"ids": [4]}, sample(3, (4,)).tensors(), tmp_path / "model.onnx")


def test_control_flow_on_values_is_refused_in_one_line(tmp_path, capfd):
    class Branches(Fused):
        def forward(self, batch):
            logits = super().forward(batch)
            return logits * 2 if logits.sum() > 0 else logits

    with pytest.raises(ConfigurationError, match="torch cannot export `Branches`: ") as caught:
        write_core(Branches((4,)).eval(), {"ids": [4]}, sample(3, (4,)).tensors(), tmp_path / "model.onnx")
    assert "\n" not in caught.value.problem
    assert capfd.readouterr() == ("", "")


def test_a_score_of_the_module_s_own_is_exported(tmp_path):
    class Calibrated(Fused):
        def score(self, logits):
            return torch.sigmoid(logits * 0.5 - 1.0)

    write_core(Calibrated((4,)).eval(), {"ids": [4]}, sample(3, (4,)).tensors(), tmp_path / "model.onnx")
    logit, score = open_session(tmp_path / "model.onnx").run(["logit", "score"], sample(6, (4,)).feeds)
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-(logit * 0.5 - 1.0))), rtol=1e-5)
