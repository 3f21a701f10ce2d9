"""Whether torch may multiply float32 matrices in TF32."""

from __future__ import annotations

import torch


def tf32_state() -> dict[str, str]:
    """How torch multiplies float32 on CUDA: `"ieee"` in float32, `"tf32"`, or `"none"` for what the backend prefers.

    Only the newer settings are read. To ask the older ones (`allow_tf32`, `get_float32_matmul_precision`) after
    somebody has used the newer ones is an error in torch.

    Returns:
        The setting of `matmul` and of `convolution`; `"unknown"` where this torch has none.

    Example:
        >>> sorted(tf32_state())
        ['convolution', 'matmul']

    Source:
        PyTorch, Numerical accuracy, "TensorFloat-32 (TF32) on Nvidia Ampere (and later) devices".
    """
    matmul, convolution = getattr(torch.backends.cuda, "matmul", None), getattr(torch.backends.cudnn, "conv", None)
    return {
        "matmul": str(getattr(matmul, "fp32_precision", "unknown")),
        "convolution": str(getattr(convolution, "fp32_precision", "unknown")),
    }
