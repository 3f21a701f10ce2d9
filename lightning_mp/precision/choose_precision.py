"""Choose the precision of training by what the hardware computes fast."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

MixedPrecisionName = Literal["16-mixed", "bf16-mixed", "32-true"]

# Conversions (f16c) don't count: without these, float16 products are emulated, 7 to 13 times slower than float32.
_CPU_FLOAT16 = frozenset({"avx512_fp16", "amx_fp16"})
_CPU_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})


def choose_precision(
    *, capability: tuple[int, int] | None, cpu_flags: Collection[str]
) -> tuple[MixedPrecisionName, str]:
    """Choose the precision of training by what the hardware computes fast, and say why.

    Args:
        capability: CUDA compute capability of the GPU that is trained on, or None for the processor.
        cpu_flags: Names of the processor's instruction sets, as /proc/cpuinfo spells them.

    Returns:
        The precision, as the Trainer spells it, and the reason.

    Example:
        >>> choose_precision(capability=(7, 0), cpu_flags=())
        ('16-mixed', 'the GPU has float16 tensor cores (compute capability 7.0)')
        >>> choose_precision(capability=None, cpu_flags=["avx2", "f16c"])[0]
        '32-true'

    Source:
        NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities": float16 tensor cores from 7.0 on.
    """
    if capability is not None:
        number = f"compute capability {capability[0]}.{capability[1]}"
        if capability >= (7, 0):
            return "16-mixed", f"the GPU has float16 tensor cores ({number})"
        return "32-true", f"the GPU has no float16 tensor cores ({number}; they begin with 7.0)"
    for precision, wanted, name in (("16-mixed", _CPU_FLOAT16, "float16"), ("bf16-mixed", _CPU_BFLOAT16, "bfloat16")):
        present = sorted(wanted & set(cpu_flags))
        if present:
            return precision, f"the processor multiplies {name} ({', '.join(present)})"  # type: ignore[return-value]  # the table has these names alone
    return "32-true", "the processor multiplies neither float16 nor bfloat16"
