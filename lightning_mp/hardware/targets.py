"""Where a bundle may run: named targets, and what each computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from lightning_mp.errors import ConfigurationError
from lightning_mp.hardware.facts import Hardware
from lightning_mp.hardware.providers import CPU, compiled_in

TargetName = Literal["this", "cpu-x86", "cuda-sm75", "cuda-sm80", "cuda-sm90", "tensorrt-10", "tensorrt-11"]

CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"
NEEDED_CAPABILITY: Final = (7, 0)
"""Compute capability from which a GPU multiplies float16 matrices on tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one kind of machine computes with ONNX Runtime.

    Args:
        name: As `check --target` takes it.
        provider: The provider that `model.onnx` runs on there.
        capability: CUDA compute capability; `None` where it is not fixed by the target.
        float16: Whether nodes of float16 are computed in float16 there. A processor computes them in float32.
        bfloat16: Whether it computes nodes of bfloat16 at all.
        tf32: Whether it can multiply float32 matrices in TF32.
        tensorrt: Major version of TensorRT.

    Example:
        >>> TARGETS["cuda-sm75"].float16, TARGETS["cuda-sm75"].tf32, TARGETS["cpu-x86"].float16
        (True, False, False)

    Source:
        NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities"; ONNX Runtime 1.32's kernels for x86.
    """

    name: str
    provider: str
    capability: tuple[int, int] | None = None
    float16: bool = False
    bfloat16: bool = False
    tf32: bool = False
    tensorrt: int | None = None

    @classmethod
    def named(cls, name: str) -> Target:
        """A target by its name; `"this"` is the machine that asks.

        Raises:
            ConfigurationError: There is none of that name.
        """
        if name not in get_args(TargetName):
            known = ", ".join(f"'{known}'" for known in get_args(TargetName))
            raise ConfigurationError(f"there is no target {name!r}", f"use one of {known}")
        return _this() if name == "this" else TARGETS[name]


def _cuda(name: str, capability: tuple[int, int]) -> Target:
    return Target(name=name, provider=CUDA, capability=capability, float16=capability >= NEEDED_CAPABILITY,
                  bfloat16=capability >= (8, 0), tf32=capability >= (8, 0))  # fmt: skip


def _tensorrt(major: int) -> Target:
    return Target(name=f"tensorrt-{major}", provider=TENSORRT, float16=True, bfloat16=True, tf32=True, tensorrt=major)


TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        Target(name="cpu-x86", provider=CPU),
        _cuda("cuda-sm75", (7, 5)),
        _cuda("cuda-sm80", (8, 0)),
        _cuda("cuda-sm90", (9, 0)),
        _tensorrt(10),
        _tensorrt(11),
    )
}
"""Every target but `"this"`, by name."""


def _this() -> Target:
    """The GPU where this build of ONNX Runtime has CUDA, else the processor."""
    if CUDA not in compiled_in():
        return Target(name="this", provider=CPU)
    gpus = Hardware.read().gpus
    return _cuda("this", gpus[0].capability) if gpus else Target(name="this", provider=CUDA)
