from __future__ import annotations

from pathlib import Path

import numpy as np

from lightning_mp.export.strict_run import bfloat16_nodes, float16_nodes, strict_run
from lightning_mp.hardware.session import open_session


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
