"""A provider that is listed and does not load must be an error, never a silent processor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

LISTED_ONLY = Path(__file__).parent / "listed_only" / "sitecustomize.txt"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:  # as `.py` here, pytest would import it when it looks for doctests
        shutil.copy(LISTED_ONLY, Path(folder) / "sitecustomize.py")
        environment = {**os.environ, "PYTHONPATH": folder}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lightning_mp.hardware.providers import _ADDITION

    path = tmp_path_factory.mktemp("model") / "model.onnx"
    path.write_bytes(_ADDITION)
    return path


def test_onnx_runtime_itself_says_nothing(model):
    code = (
        "import sys, warnings; warnings.simplefilter('error')\n"
        "import onnxruntime as ort\n"
        "session = ort.InferenceSession(sys.argv[1], providers=['CUDAExecutionProvider', 'CPUExecutionProvider'])\n"
        "print(ort.get_available_providers()[0], session.get_providers())"
    )
    found = run(code, str(model))
    assert (found.returncode, found.stdout.split()) == (0, ["CUDAExecutionProvider", "['CPUExecutionProvider']"])


def test_a_session_on_it_is_an_error_that_names_the_missing_library(model):
    code = (
        "import sys\n"
        "from lightning_mp.errors import EnvironmentMismatchError\n"
        "from lightning_mp.hardware.session import open_session\n"
        "try:\n    open_session(sys.argv[1])\n"
        "except EnvironmentMismatchError as error:\n    print(error.exit_code, error.problem)\n"
        "print(open_session(sys.argv[1], 'cpu').get_providers())"
    )
    said = run(code, str(model)).stdout.splitlines()
    assert said[0].startswith("5 `CUDAExecutionProvider` is listed but did not load (libcublasLt.so.13: cannot open")
    assert said[0].endswith("0 of 1 nodes on it")
    assert said[1] == "['CPUExecutionProvider']"


def test_hardware_tells_that_it_does_not_load():
    said = run("from lightning_mp.cli.main import main; main(['hardware'])").stdout
    words = " ".join(said.replace("│", " ").split())
    assert "CUDAExecutionProvider listed, but does not load: libcublasLt.so.13" in words
