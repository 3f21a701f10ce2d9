from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lightning_mp.export.encoded_rows import session_logits
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.export.real_rows import RealRows
from lightning_mp.export.strict_run import bfloat16_nodes, float16_nodes, strict_run
from lightning_mp.hardware.session import open_session
from lightning_mp.networks.dcn_v2 import DCNv2


def half_product(path: Path, weight: float) -> Path:
    """y = float32(float16(x) @ float16(w)), logit = its only column."""
    import onnx
    from onnx import TensorProto, helper

    table = onnx.numpy_helper.from_array(np.full((3, 1), weight, dtype=np.float16), "w")
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
            helper.make_node("MatMul", ["half", "w"], ["product"]),
            helper.make_node("Cast", ["product"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Squeeze", ["wide", "axis"], ["logit"]),
        ],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["batch"])],
        [table, onnx.numpy_helper.from_array(np.array([1]), "axis")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def test_it_finds_the_overflow_that_onnx_runtime_hides_on_a_processor(tmp_path):
    path = half_product(tmp_path / "model.onnx", 200.0)
    rows = {"x": np.array([[1, 2, 3], [100, 200, 300], [300, 0, 20]], dtype=np.float32)}
    run = strict_run(path, rows, {"product": "tower"})
    assert run.non_finite == 1
    assert run.origins == ("tower",)
    assert np.isinf(run.logits[1])
    assert np.isfinite(open_session(path).run(["logit"], rows)[0]).all()
    assert strict_run(path, rows).origins == ("product",)


def test_its_numbers_are_float16_s_own(tmp_path):
    path = half_product(tmp_path / "model.onnx", 0.3)
    x = np.random.default_rng().normal(size=(50, 3)).astype(np.float32)
    run = strict_run(path, {"x": x})
    exact = x.astype(np.float16).astype(np.float64) @ np.full(3, np.float64(np.float16(0.3)))
    np.testing.assert_allclose(run.logits, exact, rtol=2**-10, atol=2**-12)
    assert run.non_finite == 0
    assert (run.logits == run.logits.astype(np.float16)).all()
    assert (float16_nodes(path), bfloat16_nodes(path)) == (1, 0)


class TimesSixty(nn.Module):
    """DCNv2 whose dense features somebody forgot to scale."""

    def __init__(self, schema) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.schema = schema
        self.network = DCNv2(schema, hidden=(32, 16, 8))

    def forward(self, batch):
        return self.network({**batch, "dense": batch["dense"] * 60.0})


def _in_order(graph) -> None:
    """Put nodes after what they need: the converter leaves its casts at the end, which ONNX Runtime alone takes."""
    known = {"", *(entry.name for entry in (*graph.input, *graph.initializer))}
    left, ordered = list(graph.node), []
    while left:
        ready = [node for node in left if known.issuperset(node.input)]
        ordered += ready
        known.update(name for node in ready for name in node.output)
        left = [node for node in left if not known.issuperset(node.output)]
    del graph.node[:]
    graph.node.extend(ordered)


def test_rows_of_our_dcn_times_60_that_a_processor_hides_are_found_and_the_automatic_policy_saves_them(
    prepared, tmp_path
):
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    module = TimesSixty(prepared.schema).eval()
    single = export_bundle(module, tmp_path / "fp32", store=prepared.store)
    rows = RealRows.read(prepared.store, prepared.schema, 256).judged().rows.only(("ids", "dense"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells of every constant that it cuts
        converted = convert_float_to_float16(onnx.load(str(single.model)), keep_io_types=True)
    _in_order(converted.graph)
    onnx.save(converted, str(tmp_path / "converted.onnx"))
    shown = np.isfinite(session_logits(open_session(tmp_path / "converted.onnx", "cpu"), rows))
    hidden = shown & ~np.isfinite(strict_run(tmp_path / "converted.onnx", rows.feeds).logits)
    assert hidden.sum() > len(rows) / 4

    bundle = export_bundle(module, tmp_path / "mixed", store=prepared.store, precision="auto", target="cuda-sm80")
    precision = bundle.manifest.precision
    assert precision["used"] == "fp16-mixed", precision["reason"]
    assert "float16" in precision["layers"].values()
    assert precision["layers"]["network.cross.layers.1.up"].startswith("it reaches |x| = ")
    strict = json.loads((bundle.path / "parity.json").read_text())["strict"]
    assert (strict["rows"], strict["non_finite"]) == (256, 0)
    assert strict_run(bundle.model, rows.feeds).non_finite == 0
