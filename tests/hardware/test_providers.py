from __future__ import annotations

import pytest

from lightning_mp.hardware import providers
from lightning_mp.hardware.providers import CPU, Provider, compiled_in, placement, recording


def test_the_processor_runs_what_it_is_given():
    assert Provider.read(CPU) == Provider(name=CPU, device=True, loaded=True, runs=True)


@pytest.mark.parametrize("name", [name for name in compiled_in() if name != CPU])
def test_every_other_provider_that_is_listed_runs_or_says_so(name):
    # The plain package lists Azure, takes it into a session, and places no node on it.
    truth = Provider.read(name)
    assert truth.loaded or not truth.runs
    if name == "AzureExecutionProvider":
        assert (truth.device, truth.loaded, truth.runs) == (False, True, False)


def test_a_provider_that_is_not_compiled_in_does_not_run():
    truth = Provider.read("RknpuExecutionProvider")
    assert not truth.device
    assert not truth.runs


def test_the_reason_is_the_library_that_is_missing():
    said = (
        "\x1b[1;31m2026-01-01 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] [ONNXRuntimeError] : 1 : "
        "FAIL : Failed to load library /x/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open "
        "shared object file: No such file or directory\n\x1b[m\n[W:onnxruntime] Failed to create CUDAExecutionProvider"
    )
    assert providers._reason(said).startswith("libcublasLt.so.13: cannot open shared object file")
    assert providers._reason("") == ""
    assert providers._reason("all fine") == ""
    assert providers._reason("EP Error: install TensorRT\nmore") == "EP Error: install TensorRT"


def test_the_probe_is_a_valid_model():
    import onnx
    import onnxruntime

    model = onnx.load_from_string(providers._ADDITION)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        providers._ADDITION, recording(onnxruntime.SessionOptions()), providers=[CPU]
    )
    assert placement(session) == {CPU: 1}
