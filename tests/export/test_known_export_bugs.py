"""Small inputs that broke other exporters and converters, each with where it was reported.

Those of a session, a provider or a folder stand with what they are about: silent fall-back of a provider
(onnxruntime 17801, 21424, 23372) in tests/hardware; a lost or altered `.data` file (onnxruntime 28764), links and paths
that leave the folder in tests/test_bundle.py; ids -1 and beyond their table (onnxruntime 10234, 25251) and autocast in
`forward` (onnxruntime 28768) in test_core_graph.py; hooks and compiled modules in test_inference_copy.py; a dict as
sample, its order and the label in it (pytorch-lightning 20810) in test_export_onnx.py; overflow that a processor hides
(onnxconverter-common 205) in test_strict_run.py; TensorRT 11 without flags (onnxruntime 28611) in
test_target_findings.py; settings of TF32 that exclude each other (pytorch 179445) in tests/precision.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import nn

from lightning_mp.export.check import check_bundle
from lightning_mp.export.export_onnx import export_onnx
from lightning_mp.export.graph_precision import initializer_types
from lightning_mp.export.strict_run import strict_run
from lightning_mp.hardware.session import open_session


class RawValued(nn.Module):
    """Cents and milliseconds as they come, normalised inside; a mask cast in `forward`; a constant of 45,000."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.norm = nn.BatchNorm1d(3)
        self.norm.running_mean.copy_(torch.tensor([40_000.0, 60_000.0, 0.0]))
        self.norm.running_var.copy_(torch.tensor([9e8, 4e9, 1.0]))
        self.register_buffer("unit", torch.tensor(45_000.0))
        self.tags = nn.Embedding(20, 8)
        self.deep = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 1)

    def forward(self, batch):
        known = (batch["tags"] != 0).float().unsqueeze(2)
        mean = (self.tags(batch["tags"]) * known).sum(1) / known.sum(1).clamp(min=1.0)
        share = batch["dense"][:, :1] / self.unit
        return self.head(self.deep(torch.cat([self.norm(batch["dense"]), share, mean], dim=1))).squeeze(1)


def rows(count: int) -> dict[str, torch.Tensor]:
    dense = torch.rand(count, 3) * torch.tensor([90_000.0, 200_000.0, 1.0])
    return {"dense": dense, "tags": torch.randint(0, 20, (count, 4)) * torch.randint(0, 2, (count, 4))}


def test_variances_buffers_and_inputs_beyond_float16_and_a_cast_in_forward_survive_float16(tmp_path):
    """onnxconverter-common 295 (numbers cut at 1e4), 320, 331 (a Cast that does not load); onnxruntime 21345 (NaN)."""
    module, given = RawValued().eval(), rows(600)
    bundle = export_onnx(
        module, tmp_path / "bundle", sample=rows(4), rows=[given], vocabulary_sizes={"tags": 20},
        precision="fp16-mixed", target="cuda-sm80",
    )  # fmt: skip
    types = initializer_types(bundle.model)
    assert types["module.deep.2.weight"] == "FLOAT16"
    layers = bundle.manifest.precision["layers"]
    assert layers["module.head"] == "an output layer"
    parity = json.loads((bundle.path / "parity.json").read_text())
    assert parity["strict"]["non_finite"] == 0
    with torch.no_grad():
        expected = module(given).numpy()
    feeds = {"dense": given["dense"].numpy(), "tags": given["tags"].numpy()}
    for logit in (open_session(bundle.model).run(["logit"], feeds)[0], strict_run(bundle.model, feeds).logits):
        np.testing.assert_allclose(logit, expected, atol=2e-2)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 8, padding_idx=0, mode="mean"), nn.Linear(8, 1)

    def forward(self, batch):
        return self.head(self.bag(batch["tags"])).squeeze(1)


def test_an_embedding_bag_is_right_on_a_processor_and_refused_for_tensorrt(tmp_path):
    """pytorch 138485: it becomes a loop over sequences."""
    module, given = Bag().eval(), {"tags": rows(200)["tags"]}
    bundle = export_onnx(
        module, tmp_path / "bundle", sample={"tags": given["tags"][:4]}, rows=[given], precision="fp32"
    )
    with torch.no_grad():
        expected = module(given).numpy()
    feeds = {"tags": given["tags"].numpy()}
    np.testing.assert_allclose(open_session(bundle.model).run(["logit"], feeds)[0], expected, atol=1e-5)
    assert check_bundle(bundle.path).ok
    refused = [finding for finding in check_bundle(bundle.path, "tensorrt-11").findings if not finding.ok]
    assert [finding.code for finding in refused] == ["MP327"]
    assert "Loop" in refused[0].detail
