from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightning_mp.errors import BundleError, ConfigurationError
from lightning_mp.export.graph_precision import check_precision, initializer_types


def write(path: Path, dtype: type) -> Path:
    import onnx
    from onnx import TensorProto, helper

    table = onnx.numpy_helper.from_array(np.ones((3, 2), dtype=dtype), "user.weight")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["user.weight", "ids"], ["row"]),
            helper.make_node("Cast", ["row"], ["out"], to=TensorProto.FLOAT),
        ],
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 2])],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def test_float16_is_accepted_for_the_tables_that_the_policy_names_and_for_nothing_else(tmp_path):
    path = write(tmp_path / "half.onnx", np.float16)
    assert initializer_types(path) == {"user.weight": "FLOAT16"}
    check_precision(path, frozenset({"user.weight"}))
    with pytest.raises(ConfigurationError, match=r"initializer `user\.weight` is FLOAT16"):
        check_precision(path, frozenset({"item.weight"}))
    check_precision(write(tmp_path / "single.onnx", np.float32), frozenset())


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 100)
    with pytest.raises(BundleError, match=r"model\.onnx` is not an ONNX model"):
        initializer_types(tmp_path / "model.onnx")
