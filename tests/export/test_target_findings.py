"""Targets judged without their hardware."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightning_mp.bundle import Bundle, seal
from lightning_mp.export.check import check_bundle
from lightning_mp.export.codes import EXPORT_CODES
from lightning_mp.export.export_bundle import export_bundle
from lightning_mp.manifest import Manifest

LISTED_ONLY = Path(__file__).parents[1] / "hardware" / "listed_only" / "sitecustomize.txt"
TARGETS = ("cpu-x86", "cuda-sm75", "cuda-sm80", "cuda-sm90", "tensorrt-10", "tensorrt-11")


@pytest.fixture(scope="module")
def mixed(prepared, plain_dcn, tmp_path_factory) -> Bundle:
    folder = tmp_path_factory.mktemp("mixed") / "bundle"
    return export_bundle(plain_dcn(prepared.schema, scale=0.2), folder, store=prepared.store, precision="fp16-mixed")


def told(report) -> dict[str, str]:
    return {finding.name: finding.detail for finding in report.findings}


def altered(folder: Path, change) -> None:
    """Change `model.onnx` and make the digests right again."""
    import onnx

    from lightning_mp.export.graph_precision import initializer_types

    model = onnx.load(str(folder / "model.onnx"))
    change(model.graph)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    manifest = Manifest.from_json((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    kinds = initializer_types(folder / "model.onnx")
    seal(folder, replace(manifest, precision={**manifest.precision, "initializers": kinds}))


@pytest.mark.parametrize("target", TARGETS)
def test_a_mixed_bundle_is_judged_for_every_target(mixed, target):
    report = check_bundle(mixed.path, target)
    assert report.ok, [finding for finding in report.findings if not finding.ok]
    codes = {entry["name"]: entry["code"] for entry in report.to_dict()["findings"]}
    assert codes["files"] == "MP320"
    assert codes.get("strict float16 run", "MP306") == "MP306"
    assert set(codes.values()) <= set(EXPORT_CODES)
    details = told(report)
    if target == "cpu-x86":
        assert "are computed in float32 here" in details["float16 arithmetic"]
        assert "strict float16 run" not in details
    else:
        assert details["strict float16 run"].startswith("0 of 64 rows are not finite")
    assert ("compute capability" in details) == target.startswith("cuda")
    if target == "cuda-sm75":
        assert details["compute capability"].startswith("7.5; float16 needs 7.0")
        assert details["TF32"] == "the hardware has none; float32 products stay float32"
    if target in ("cuda-sm80", "cuda-sm90"):
        assert "open it with use_tf32=0 (parity was measured without it)" in details["TF32"]
    if target.startswith("tensorrt"):
        assert "precision flags are not needed" in details["float16 arithmetic"]


def test_a_float32_bundle_gives_tensorrt_a_float32_engine(bundle):
    assert "TensorRT 11 builds a float32 engine" in told(check_bundle(bundle.path, "tensorrt-11"))["float16 arithmetic"]


def test_an_overflow_that_this_machine_hides_fails_gpu_targets_alone(mixed, tmp_path):
    import onnx

    def grow(graph) -> None:
        for tensor in graph.initializer:
            if tensor.name == "deep.2.weight":
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float16(2**13),
                                                             tensor.name))  # fmt: skip
            if tensor.name == "deep.4.weight":
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float16(2**11),
                                                             tensor.name))  # fmt: skip

    folder = Path(shutil.copytree(mixed.path, tmp_path / "grown"))
    altered(folder, grow)
    wrong = {finding.name: finding.detail for finding in check_bundle(folder, "cuda-sm80").findings if not finding.ok}
    assert "rows are NaN or infinite in float16" in wrong["strict float16 run"]
    assert "do not deploy this file to a GPU" in wrong["strict float16 run"]
    assert "strict float16 run" not in told(check_bundle(folder, "cpu-x86"))


def test_nodes_that_a_target_lacks_are_named(bundle, tmp_path):
    from onnx import TensorProto, helper

    def add(graph) -> None:
        graph.node.append(helper.make_node("SequenceEmpty", [], ["nothing"], dtype=TensorProto.FLOAT))

    folder = Path(shutil.copytree(bundle.path, tmp_path / "sequence"))
    altered(folder, add)
    for target in ("tensorrt-10", "cuda-sm80"):
        wrong = {finding.name: finding.detail for finding in check_bundle(folder, target).findings if not finding.ok}
        assert f"{target} has no 1 SequenceEmpty" in wrong["operators"]


def test_bfloat16_is_refused_where_there_is_no_arithmetic_for_it(bundle, tmp_path):
    from onnx import TensorProto, helper

    def add(graph) -> None:
        graph.node.extend([
            helper.make_node("Cast", ["logit"], ["short"], to=TensorProto.BFLOAT16),
            helper.make_node("Add", ["short", "short"], ["shorter"]),
        ])  # fmt: skip

    folder = Path(shutil.copytree(bundle.path, tmp_path / "bfloat16"))
    altered(folder, add)
    for target, ok in (("cpu-x86", False), ("cuda-sm75", False), ("cuda-sm80", True)):
        (finding,) = [f for f in check_bundle(folder, target).findings if f.name == "bfloat16 arithmetic"]
        assert finding.ok is ok
        assert finding.detail.startswith("1 nodes")


def test_a_provider_that_is_listed_and_does_not_load_fails_the_check_of_this_machine(bundle, tmp_path):
    shutil.copy(LISTED_ONLY, tmp_path / "sitecustomize.py")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "lightning_mp", "check", str(bundle.path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 5
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAIL")]
    assert "session of model.onnx" in failed[0]
    assert "`CUDAExecutionProvider` is listed but did not load (libcublasLt.so.13" in failed[0]
    assert any("it would silently run on the CPU" in line for line in failed[1:])
