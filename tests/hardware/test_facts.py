from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from lightning_mp.hardware import facts
from lightning_mp.hardware.facts import Gpu, Hardware


def test_cores_and_memory_are_what_this_process_may_use():
    hardware = Hardware.read()
    assert hardware.cores == len(os.sched_getaffinity(0))
    assert 2**28 < hardware.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert hardware.machine == platform.machine()
    assert hardware.cpu


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch names x86 flags")
def test_flags_agree_with_torch():
    found, flags = torch.cpu.get_capabilities(), Hardware.read().cpu_flags
    for name in ("f16c", "avx2", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_bf16", "amx_fp16", "amx_int8"):
        if name in found:
            assert (name in flags) == bool(found[name]), name


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("model name\t: Fast CPU @ 3: GHz\nflags\t\t: fpu f16c avx512_fp16 amx_bf16\n", "Fast CPU @ 3: GHz",
         ("f16c", "avx512_fp16", "amx_bf16")),
        ("processor : 0\nFeatures : fp asimd fphp asimdhp bf16 i8mm\n", "", ("fphp", "asimdhp", "bf16", "i8mm")),
        ("", "", ()),
    ],
)  # fmt: skip
def test_cpuinfo_of_other_machines_is_read(tmp_path: Path, text, model, flags):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert facts._processor(path) == (model, flags)
    assert facts._processor(tmp_path / "absent") == ("", ())


def test_a_processor_with_conversions_only_has_no_float16_arithmetic():
    def machine(*flags: str) -> Hardware:
        return Hardware(machine="x86_64", cpu="x", cpu_flags=flags, cores=1, memory_bytes=1)

    assert not machine("f16c", "avx512f").cpu_float16
    assert machine("avx512_fp16").cpu_float16
    assert machine("fphp").cpu_float16
    assert not machine("f16c").cpu_bfloat16
    assert machine("amx_bf16").cpu_bfloat16


def test_output_of_nvidia_smi_is_read_and_its_gaps_are_passed_over():
    text = (
        "NVIDIA A10G, 8.6, 23028, 570.86.15\n"
        "NVIDIA Old, [N/A], 4096, 390.1\n"
        "No devices were found\n"
        "NVIDIA GB200, 10.0, 189471, 580.1\n"
    )
    ampere, blackwell = facts._parse_smi(text)
    assert ampere == Gpu(name="NVIDIA A10G", capability=(8, 6), memory_bytes=23028 * 2**20, driver="570.86.15")
    assert (blackwell.capability, blackwell.float16, blackwell.bfloat16, blackwell.tf32) == ((10, 0), True, True, True)
    assert facts._parse_smi("") == ()


@pytest.mark.parametrize(
    ("capability", "formats"),
    [((6, 1), (False, False, False)), ((7, 0), (True, False, False)), ((7, 5), (True, False, False)),
     ((8, 0), (True, True, True)), ((9, 0), (True, True, True))],
)  # fmt: skip
def test_number_formats_follow_the_capability(capability, formats):
    gpu = Gpu(name="x", capability=capability, memory_bytes=1, driver="1")
    assert (gpu.float16, gpu.bfloat16, gpu.tf32) == formats


@pytest.mark.gpu
def test_gpus_agree_with_torch():
    found = sorted(gpu.capability for gpu in Hardware.read().gpus)
    assert torch.cuda.get_device_capability() in found


def test_it_becomes_plain_json_values():
    gpu = Gpu(name="x", capability=(8, 0), memory_bytes=1, driver="1")
    record = Hardware(machine="m", cpu="c", cpu_flags=("f16c",), cores=2, memory_bytes=3, gpus=(gpu,)).to_dict()
    assert record["gpus"] == ({"name": "x", "capability": (8, 0), "memory_bytes": 1, "driver": "1"},)
