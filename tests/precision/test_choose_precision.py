from __future__ import annotations

import pytest

from lightning_mp.precision.choose_precision import choose_precision


@pytest.mark.parametrize(
    ("capability", "flags", "precision", "reason"),
    [
        ((9, 0), (), "16-mixed", "compute capability 9.0"),
        ((7, 5), (), "16-mixed", "compute capability 7.5"),
        ((6, 1), ("avx512_fp16",), "32-true", "no float16 tensor cores (compute capability 6.1"),
        (None, ("avx2", "f16c", "avx512_bf16"), "bf16-mixed", "bfloat16 (avx512_bf16)"),
        (None, ("amx_bf16",), "bf16-mixed", "bfloat16 (amx_bf16)"),
        (None, ("amx_bf16", "avx512_fp16"), "16-mixed", "float16 (avx512_fp16)"),
        (None, ("amx_fp16", "avx512_fp16"), "16-mixed", "float16 (amx_fp16, avx512_fp16)"),
        (None, ("avx2", "f16c", "fphp"), "32-true", "neither float16 nor bfloat16"),
    ],
)
def test_the_choice_follows_the_hardware_and_says_why(capability, flags, precision, reason):
    chosen, why = choose_precision(capability=capability, cpu_flags=flags)
    assert chosen == precision
    assert reason in why
