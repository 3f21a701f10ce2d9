from __future__ import annotations

import subprocess
import sys

# In a process of its own: the switches are the process's. Each mix is laid over what the one before was mended to.
SCRIPT = """
import itertools
import torch
from lightning_mp.precision.tf32_switches import Tf32Switches

def mix(number):
    if number == 1: torch.set_float32_matmul_precision("high")
    if number == 2: torch.backends.cuda.matmul.allow_tf32 = True
    if number == 3: torch.backends.cuda.matmul.fp32_precision = "tf32"
    if number == 4: torch.set_float32_matmul_precision("high"); torch.backends.cuda.matmul.fp32_precision = "ieee"
    if number == 5: torch.backends.cudnn.conv.fp32_precision = "ieee"
    if number == 6: torch.backends.fp32_precision = "tf32"

assert Tf32Switches.read() == Tf32Switches(matmul=False, convolution=True)
raised = []
for number in range(7):
    for matmul, convolution in itertools.product((True, False), repeat=2):
        mix(number)
        raised.append(Tf32Switches.read().old_interface_raises)
        assert Tf32Switches.read().matmul is (number in (1, 2, 3)) or number in (0, 5, 6), number
        wanted = Tf32Switches(matmul=matmul, convolution=convolution)
        wanted.apply()
        assert Tf32Switches.read() == wanted, (number, wanted, Tf32Switches.read())
        assert torch.get_float32_matmul_precision() == ("high" if matmul else "highest")
        assert torch.backends.cuda.matmul.allow_tf32 is matmul
        assert torch.backends.cudnn.allow_tf32 is convolution
        assert not wanted.old_interface_raises
assert any(raised[12:16]) and not any(raised[:12])
print("done")
"""


def test_it_reads_after_any_mix_and_sets_so_that_all_can_read():
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
