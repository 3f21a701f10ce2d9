from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import torch
from lightning_mp.precision.tf32 import tf32_state
{setting}
print(tf32_state()["matmul"])
"""


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "tf32"),  # after this torch refuses the older getters
        ("torch.backends.cuda.matmul.fp32_precision = 'ieee'", "ieee"),
        ("torch.set_float32_matmul_precision('high')", "tf32"),
        ("torch.set_float32_matmul_precision('highest')", "ieee"),
    ],
)
def test_both_ways_of_setting_it_are_read_without_an_error(setting, told):
    code = CODE.format(setting=setting)  # in a process of its own: the setting is global
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, told), run.stderr
