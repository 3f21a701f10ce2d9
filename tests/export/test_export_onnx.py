"""Modules of other projects, exported with names, parity and checklist."""

from __future__ import annotations

import json
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from torch import nn

from lightning_mp.bundle import Bundle
from lightning_mp.errors import BundleError, ConfigurationError
from lightning_mp.export.batch_module import BatchModule
from lightning_mp.export.check import check_bundle
from lightning_mp.export.export_onnx import export_onnx
from lightning_mp.hardware.session import open_session
from lightning_mp.serve.scorer import Scorer

USERS, ITEMS = 60, 40


class Matcher(pl.LightningModule):
    """Written without a thought of this package: a probability, a dict batch with the label in it."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 8), nn.Embedding(ITEMS, 8)
        self.tower = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, batch):
        looked_up = [self.user(batch["user"]), self.item(batch["item"]), batch["dense"]]
        return {"click": torch.sigmoid(self.tower(torch.cat(looked_up, dim=1)))}

    def training_step(self, batch, batch_idx):
        return nn.functional.binary_cross_entropy(self(batch)["click"][:, 0], batch["label"])


def batch(rows: int, *, swapped: bool = False) -> dict[str, torch.Tensor]:
    drawn = {
        "user": torch.randint(0, USERS, (rows,)), "item": torch.randint(0, ITEMS, (rows,), dtype=torch.int32),
        "dense": torch.randn(rows, 4), "label": torch.randint(0, 2, (rows,)).float(),
    }  # fmt: skip
    return dict(reversed(drawn.items())) if swapped else drawn


INPUTS = ["user", "item", "dense"]


@pytest.fixture(scope="module")
def module() -> Matcher:
    return Matcher().eval()


@pytest.fixture(scope="module")
def exported(module, tmp_path_factory) -> Bundle:
    return export_onnx(
        module, tmp_path_factory.mktemp("matcher") / "bundle", sample=batch(8, swapped=True), inputs=INPUTS,
        rows=[batch(500), batch(500, swapped=True)], labels="label", items=["item"], gives="score", output="click",
        vocabulary_sizes={"user": USERS, "item": ITEMS}, precision="fp32",
    )  # fmt: skip


def test_inputs_keep_their_names_whatever_the_order_of_the_dict(exported, module):
    given = batch(64)
    with torch.no_grad():
        expected = module(given)["click"][:, 0].numpy()
    session = open_session(exported.model)
    assert [entry.name for entry in session.get_inputs()] == INPUTS
    feeds = {name: given[name].numpy().astype(np.int64 if name != "dense" else np.float32) for name in INPUTS}
    logit, score = session.run(["logit", "score"], feeds)
    np.testing.assert_allclose(score, expected, atol=1e-6)
    np.testing.assert_allclose(logit, np.log(expected / (1 - expected)), atol=1e-4)


def test_ids_outside_of_a_table_are_row_0(exported, module):
    feeds = {"user": np.array([-1, USERS, 0]), "item": np.array([3, 3, 3]), "dense": np.zeros((3, 4), np.float32)}
    logit = open_session(exported.model).run(["logit"], feeds)[0]
    assert logit[0] == logit[1] == logit[2]


def test_parity_slices_and_the_checklist_are_there(exported):
    report = json.loads((exported.path / "parity.json").read_text())
    assert (report["rows"], report["split"], report["passed"]) == (1000, "given", True)
    assert report["inputs"]["silent"] == []
    assert report["ranking"]["length"] == ITEMS
    assert report["auc"]["difference"] is not None
    assert [(t.name, t.datatype, t.shape) for t in exported.manifest.tensors] == [
        ("user", "INT64", ()), ("item", "INT64", ()), ("dense", "FP32", (4,)),
    ]  # fmt: skip
    for target in ("this", "cuda-sm75", "tensorrt-11"):
        report = check_bundle(exported.path, target)
        assert report.ok, [finding for finding in report.findings if not finding.ok]
    assert not (exported.path / "pipeline.onnx").exists()
    with pytest.raises(BundleError, match=r"has no `pipeline\.onnx`: it was exported without a feature store"):
        Scorer(exported)


def test_a_label_left_in_the_batch_is_refused_and_nothing_is_written(module, tmp_path):
    with pytest.raises(ConfigurationError, match="input `label` has no effect on what `Matcher` answers") as caught:
        export_onnx(module, tmp_path / "bundle", sample=batch(64), gives="score", output="click", precision="fp32")
    assert "inputs=['user', 'item', 'dense']" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_float16_layers_and_tables_of_somebody_else_s_module(module, tmp_path):
    bundle = export_onnx(
        module, tmp_path / "bundle", sample=batch(8), inputs=INPUTS, rows=[batch(600)], gives="score", output="click",
        precision="fp16-mixed",
    )  # fmt: skip
    precision = bundle.manifest.precision
    assert precision["tables"] == {"module.user": "float16", "module.item": "float16"}
    assert list(precision["layers"].values()) == ["an input layer", "float16", "an output layer"]
    assert json.loads((bundle.path / "parity.json").read_text())["strict"]["non_finite"] == 0


class Positional(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 4)
        self.example_input_array = (torch.randint(0, 30, (6, 3)), torch.randn(6, 4))

    def forward(self, history, target):
        mask = (history > 0).unsqueeze(2)
        return ((self.table(history) * mask).sum(dim=1) * target).sum(dim=1)


def test_the_declared_example_and_positions_do_too(tmp_path):
    module = Positional().eval()
    with pytest.raises(ConfigurationError, match="a sample without names needs them"):
        export_onnx(module, tmp_path / "bundle")
    bundle = export_onnx(module, tmp_path / "bundle", inputs=["watched", "candidate"], precision="fp32")
    history, target = torch.randint(0, 30, (5, 3)), torch.randn(5, 4)
    logit = open_session(bundle.model).run(["logit"], {"watched": history.numpy(), "candidate": target.numpy()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(logit, module(history, target).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sample": None}, "`Matcher` declares no sample batch"),
        ({"inputs": ["user", "price"]}, "the batch has no `price`; it has `user`, `item`, `dense`, `label`"),
        ({"items": ["shop"]}, "`items` names `shop`, which is no input"),
        ({"output": "buy"}, "answers 'click', 'other', and there is no 'buy'"),
        ({"rows": [{"user": torch.zeros(1).long(), "item": torch.zeros(1).long(), "dense": torch.zeros(1, 4)}]},
         "1 rows to judge on"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_work_are_refused(module, tmp_path, settings, words):
    class Two(Matcher):
        def forward(self, given):
            return {**super().forward(given), "other": given["dense"]}

    chosen = Two() if "output" in settings else module
    arguments = {"sample": batch(8), "inputs": INPUTS, "gives": "score", "output": "click", **settings}
    with pytest.raises(ConfigurationError, match=words):
        export_onnx(chosen, tmp_path / "bundle", **arguments)
    assert not Path(tmp_path / "bundle").exists()


def test_ways_of_calling_are_told_from_the_signature():
    class Named(nn.Module):
        def forward(self, item, user, *, scale=2.0):
            return item - user * scale

    answer = BatchModule(Named(), ("user", "item"))({"user": torch.ones(3), "item": torch.full((3,), 5.0)})
    assert answer.tolist() == [3.0, 3.0, 3.0]


class TwoAims(Matcher):
    """One answer an aim, each with a column of its own."""

    def forward(self, batch):
        looked_up = torch.cat([self.user(batch["user"]), self.item(batch["item"]), batch["dense"]], dim=1)
        click = self.tower(looked_up)
        return {"order": click * 0.5 - 1.0, "click": click}


def test_several_answers_become_named_tasks(tmp_path):
    module, rows = TwoAims().eval(), [batch(300)]
    rows[0]["label"] = torch.randint(0, 2, (300, 2)).float()
    bundle = export_onnx(
        module, tmp_path / "bundle", sample=batch(8), inputs=INPUTS, rows=rows, labels="label", items=["item"],
        output=["click", "order"], precision="fp32",
    )  # fmt: skip
    assert bundle.manifest.tasks == ("click", "order")
    given = batch(16)
    with torch.no_grad():
        answer = module(given)
    feeds = {name: given[name].numpy().astype(np.int64 if name != "dense" else np.float32) for name in INPUTS}
    logit = open_session(bundle.model).run(["logit"], feeds)[0]
    np.testing.assert_allclose(logit[:, :1], answer["click"].numpy(), atol=1e-5)
    np.testing.assert_allclose(logit[:, 1:], answer["order"].numpy(), atol=1e-5)
    assert check_bundle(bundle.path).ok


def test_ids_of_the_rows_outside_of_their_vocabulary_are_counted_and_read_as_row_0(module, tmp_path):
    rows = batch(400)
    rows["user"][:5], rows["user"][5:12] = -1, USERS
    bundle = export_onnx(
        module, tmp_path / "bundle", sample=batch(8), inputs=INPUTS, rows=[rows], gives="score", output="click",
        vocabulary_sizes={"user": USERS, "item": ITEMS}, precision="fp32",
    )  # fmt: skip
    report = json.loads((bundle.path / "parity.json").read_text())
    assert report["outside"] == {"user": 12}
    told = "input `user`: 12 ids are outside of their vocabulary; the graph reads them as row 0"
    assert report["findings"] == [{"code": "MP304", "problem": told}]
