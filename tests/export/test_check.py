from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightning_mp.bundle import seal
from lightning_mp.errors import ConfigurationError
from lightning_mp.export.check import CheckReport, check_bundle
from lightning_mp.manifest import Manifest
from lightning_mp.serve.scorer import Scorer


def sealed_again(folder: Path, **changes: object) -> None:
    """Make the digests right again, as someone who alters a file on purpose would."""
    manifest = Manifest.from_json((folder / "manifest.json").read_text())
    (folder / "manifest.json").unlink()
    seal(folder, replace(manifest, **changes))  # type: ignore[arg-type]


def failed(report: CheckReport) -> dict[str, str]:
    return {finding.name: finding.detail for finding in report.findings if not finding.ok}


def test_a_whole_bundle_passes_every_question(bundle):
    report = check_bundle(bundle.path)
    assert report.ok, failed(report)
    details = {finding.name: finding.detail for finding in report.findings}
    assert list(details) == [
        "files", "manifest in the graphs", "number formats", "session of model.onnx", "session of pipeline.onnx",
        "sample answers", "float16 arithmetic", "operators", "processor", "versions",
    ]  # fmt: skip
    assert "nodes on CPUExecutionProvider" in details["session of pipeline.onnx"]
    assert details["sample answers"].startswith("12 rows within 0.0e+00")
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


def test_a_link_to_a_bundle_is_judged_and_opened_as_the_bundle(bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("current").symlink_to(bundle.path)
    report = check_bundle("current")
    assert report.ok, failed(report)
    assert Scorer.open("current").inputs == bundle.manifest.inputs


@pytest.mark.parametrize("name", ["model.onnx", "pipeline.onnx", "sample_inputs.npz", "parity.json", "manifest.json"])
def test_one_flipped_bit_is_found(copied, name):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    report = check_bundle(copied)
    assert not report.ok
    if name != "manifest.json":
        assert f"`{copied / name}` does not match its digest" in failed(report)["files"]


def test_a_missing_file_is_named_with_its_size(copied):
    size = (copied / "model.onnx").stat().st_size
    (copied / "model.onnx").unlink()
    assert f"model.onnx` is missing (expected {size:,} bytes)" in failed(check_bundle(copied))["files"]


def test_a_weight_in_another_format_than_promised_is_found_under_right_digests(copied):
    import onnx

    path = copied / "model.onnx"
    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        if tensor.name == "head.weight":
            half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
    path.write_bytes(model.SerializeToString())
    sealed_again(copied)
    found = failed(check_bundle(copied))
    assert (
        "policy says `head.weight` is FLOAT, initializer `head.weight` in `model.onnx` is FLOAT16"
        in (found["number formats"])
    )
    assert "cannot be opened" in found["session of model.onnx"]


def test_altered_weights_under_right_digests_give_other_answers(copied):
    import onnx

    path = copied / "pipeline.onnx"
    model = onnx.load(str(path))
    for tensor in model.graph.initializer:
        if tensor.name == "model/head.bias":
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) + 0.01, tensor.name))
    path.write_bytes(model.SerializeToString())
    sealed_again(copied)
    found = failed(check_bundle(copied))
    assert list(found) == ["sample answers"]
    assert "gives the logit" in found["sample answers"]


def test_another_manifest_than_the_graphs_carry_is_found(copied):
    sealed_again(copied, task="preference")
    assert "was sealed with another manifest" in failed(check_bundle(copied))["manifest in the graphs"]


def test_a_folder_that_is_no_bundle_and_a_newer_one_are_findings(copied, tmp_path):
    assert "is not a folder" in failed(check_bundle(tmp_path / "absent"))["files"]
    (tmp_path / "empty").mkdir()
    assert "it is not a bundle" in failed(check_bundle(tmp_path / "empty"))["files"]
    record = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps({**record, "format": 99}))
    assert "the bundle is of format 99" in failed(check_bundle(copied))["files"]


def test_a_target_that_is_not_known_is_refused(bundle):
    with pytest.raises(ConfigurationError, match="there is no target 'cuda-sm42'"):
        check_bundle(bundle.path, "cuda-sm42")


def test_it_needs_neither_torch_nor_the_model_s_code(bundle):
    code = (
        "import sys\n"
        "from lightning_mp.export.check import check_bundle\n"
        "assert check_bundle(sys.argv[1]).ok\n"
        "assert not {'torch', 'lightning', 'pyarrow'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(bundle.path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
