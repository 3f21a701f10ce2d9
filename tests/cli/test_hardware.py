from __future__ import annotations

import json
import os
import subprocess
import sys

from lightning_mp.cli.main import main


def test_the_table_tells_processor_memory_and_the_truth_about_providers(capsys):
    assert main(["hardware"]) == 0
    shown = capsys.readouterr().out
    for words in ("processor", "GiB", "float16 on the CPU", "GPU", "TF32 in torch", "CPUExecutionProvider", "runs"):
        assert words in shown


def test_json_carries_the_same_facts(capsys):
    assert main(["hardware", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["cores"] == len(os.sched_getaffinity(0))
    assert {"machine", "cpu", "cpu_flags", "memory_bytes", "gpus", "providers", "versions", "tf32"} == set(record) - {
        "cores"
    }
    (cpu,) = [provider for provider in record["providers"] if provider["name"] == "CPUExecutionProvider"]
    assert cpu == {"name": "CPUExecutionProvider", "device": True, "loaded": True, "runs": True, "reason": ""}


def test_help_of_the_three_commands_loads_nothing_heavy():
    code = (
        "import contextlib, io, sys\n"
        "from lightning_mp.cli.main import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "    assert [main([name, '--help']) for name in ('export', 'check', 'hardware')] == [0, 0, 0]\n"
        "assert 'lightning-mp export' in out.getvalue()\n"
        "heavy = {'torch', 'onnx', 'onnxruntime', 'numpy', 'pyarrow', 'lightning', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
