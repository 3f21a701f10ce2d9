from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightning_mp.errors import BundleError, EnvironmentMismatchError, LightningMPWarning
from lightning_mp.hardware.providers import CPU, compiled_in, placement
from lightning_mp.hardware.session import open_on, open_session

LISTED_ONLY = "AzureExecutionProvider"


def write_model(path: Path, *, external: bool = False) -> Path:
    import onnx
    from onnx import TensorProto, helper

    weight = onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 64])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(path), save_as_external_data=external, location=f"{path.name}.data", size_threshold=0)
    return path


def test_one_thread_computes_and_the_placement_is_known(tmp_path):
    session = open_session(write_model(tmp_path / "model.onnx"))
    assert session.get_session_options().intra_op_num_threads == 1
    assert placement(session) == {CPU: 1}
    x = np.random.default_rng().normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


needs_a_listed_provider = pytest.mark.skipif(LISTED_ONLY not in compiled_in(), reason=f"{LISTED_ONLY} is not built in")


@needs_a_listed_provider
def test_a_provider_that_is_listed_and_takes_no_node_is_an_error(tmp_path):
    with pytest.raises(EnvironmentMismatchError, match=f"`{LISTED_ONLY}` loaded, and 0 of 1 nodes") as caught:
        open_on(write_model(tmp_path / "model.onnx"), LISTED_ONLY)
    assert "target 'cpu'" in caught.value.hint
    assert caught.value.exit_code == 5


@needs_a_listed_provider
def test_it_is_a_warning_on_request_and_the_session_works(tmp_path):
    path = write_model(tmp_path / "model.onnx")
    with pytest.warns(LightningMPWarning, match=f"`{LISTED_ONLY}` loaded, and 0 of 1 nodes"):
        session = open_on(path, LISTED_ONLY, on_fallback="warn")
    assert placement(session) == {CPU: 1}


def test_a_provider_that_is_not_compiled_in_is_an_error(tmp_path):
    with pytest.raises(EnvironmentMismatchError, match=r"no `RknpuExecutionProvider`; it has .*CPUExecutionProvider"):
        open_on(write_model(tmp_path / "model.onnx"), "RknpuExecutionProvider")


def test_a_missing_file_and_a_file_that_is_no_model_are_named(tmp_path):
    with pytest.raises(BundleError, match=r"absent\.onnx` is missing"):
        open_session(tmp_path / "absent.onnx")
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(BundleError, match=r"model\.onnx` cannot be opened: .*INVALID_PROTOBUF"):
        open_session(broken)


def test_weights_left_behind_are_asked_for_by_name(tmp_path):
    write_model(tmp_path / "model.onnx", external=True)
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(BundleError, match="keeps its weights in another file") as caught:
        open_session(tmp_path / "model.onnx")
    assert "model.onnx.data" in caught.value.hint
