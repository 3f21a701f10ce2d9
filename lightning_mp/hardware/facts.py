"""What this machine can compute: processor, instruction sets, memory, NVIDIA GPUs."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

CPU_FLAGS: Final = (
    "f16c", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16",
    "amx_int8", "fphp", "asimdhp", "bf16", "i8mm", "sve",
)  # fmt: skip
"""Names of /proc/cpuinfo that decide which number formats are fast; x86 first, then ARM."""

_QUERY: Final = ("name", "compute_cap", "memory.total", "driver_version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU.

    Args:
        name: As the driver calls it.
        capability: CUDA compute capability, such as `(8, 0)`.
        memory_bytes: All its memory.
        driver: Version of the driver.

    Example:
        >>> gpu = Gpu(name="Tesla T4", capability=(7, 5), memory_bytes=16 << 30, driver="570.86")
        >>> gpu.float16, gpu.bfloat16, gpu.tf32
        (True, False, False)

    Source:
        NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities": float16 tensor cores from 7.0, bfloat16 and
        TF32 from 8.0.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    driver: str

    @property
    def float16(self) -> bool:
        """Whether it multiplies float16 matrices on tensor cores."""
        return self.capability >= (7, 0)

    @property
    def bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 matrices on tensor cores."""
        return self.capability >= (8, 0)

    @property
    def tf32(self) -> bool:
        """Whether it can multiply float32 matrices in TF32."""
        return self.capability >= (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What this machine can compute.

    Args:
        machine: Instruction set family: `"x86_64"`, `"aarch64"`.
        cpu: Model name of the processor.
        cpu_flags: Those of `CPU_FLAGS` that it has.
        cores: Cores that this process may use.
        memory_bytes: Main memory that this process may use: the machine's, or the container's limit.
        gpus: NVIDIA GPUs of the machine, whatever `CUDA_VISIBLE_DEVICES` says; empty without a driver.

    Example:
        >>> hardware = Hardware.read()
        >>> hardware.cores >= 1 and hardware.memory_bytes > 0
        True
    """

    machine: str
    cpu: str
    cpu_flags: tuple[str, ...]
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()

    @classmethod
    def read(cls) -> Hardware:
        """Read the facts; nothing is cached, and what cannot be read is left empty."""
        model, flags = _processor(Path("/proc/cpuinfo"))
        return cls(
            machine=platform.machine(),
            cpu=model or platform.processor() or platform.machine(),
            cpu_flags=flags,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_bytes=_memory(),
            gpus=_gpus(),
        )

    @property
    def cpu_float16(self) -> bool:
        """Whether the processor has float16 arithmetic, not only conversions."""
        return bool({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"} & set(self.cpu_flags))

    @property
    def cpu_bfloat16(self) -> bool:
        """Whether the processor has bfloat16 products."""
        return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(self.cpu_flags))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def _processor(cpuinfo: Path) -> tuple[str, tuple[str, ...]]:
    model = ""
    present: set[str] = set()
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and not model:
                model = value.strip()
            elif key.strip() in ("flags", "Features") and not present:
                present = set(value.split())
    return model, tuple(flag for flag in CPU_FLAGS if flag in present)


def _memory() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # absent, or "max"
            memory = min(memory, int(Path(limit).read_text(encoding="ascii")))
    return memory


def _gpus() -> tuple[Gpu, ...]:
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return _parse_smi(_smi())
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver
        return ()
    try:
        return tuple(_nvml_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return _parse_smi(_smi())
    finally:
        nvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        capability=(major, minor),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 11.525


def _smi() -> str:
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _parse_smi(text: str) -> tuple[Gpu, ...]:
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        with suppress(ValueError):  # "[N/A]", or a message in place of a row
            name, capability, memory, driver = cells
            major, _, minor = capability.partition(".")
            gpus.append(
                Gpu(name=name, capability=(int(major), int(minor)), memory_bytes=int(memory) << 20, driver=driver)
            )
    return tuple(gpus)
