"""Processes that see different things do the same: where they do not, they wait for each other forever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("case", ["overflow", "refusal", "tiny"])
def test_what_one_process_alone_meets_stops_no_run(tmp_path, case):
    script = Path(__file__).with_name("monitors_in_two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(tmp_path), case]
    ended = subprocess.run(command, env=environment, timeout=240, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert first["skipped"] == second["skipped"]
    assert (first["skipped"] > 0) == (case == "overflow")
    assert first["probed"] == (case != "refusal")
    assert list((tmp_path / "report").glob("*.html"))
