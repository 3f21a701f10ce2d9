"""Points of the kill-and-resume proof; `python tests/faults/kill_resume.py --all` tries every one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROOF = Path(__file__).with_name("kill_resume.py")


def test_24_points_end_as_if_nothing_had_happened():
    # In a process of its own: it forks, which a process with autograd's threads must not.
    command = [sys.executable, str(PROOF), "--points", "24", "--seed", "20", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["trainings"] == 24
    assert told["kills"] >= 24
    assert told["rows"] == []
