"""CUDA's autocast lists on a CPU: what CUDA computes in float32, and the CPU's autocast leaves in float16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

FLOAT32: Final = frozenset({
    "acos", "asin", "cosh", "cosine_similarity", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1",
    "frobenius_norm", "group_norm", "layer_norm", "linalg_matrix_norm", "linalg_vector_norm", "log", "log10", "log1p",
    "log2", "log_softmax", "logsumexp", "native_layer_norm", "norm", "nuclear_norm", "pdist", "pow", "reciprocal",
    "renorm", "rms_norm", "rsqrt", "sinh", "softmax", "softplus", "sum", "tan",
})  # fmt: skip
"""Operations in CUDA's float32 list that the CPU has in none; with all of their overloads."""

OTHER: Final = frozenset({
    "_convolution", "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell",
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d", "addcdiv", "addcmul", "addmv", "addr", "atan2", "bilinear", "chain_matmul",
    "convolution", "cross", "cudnn_convolution", "cudnn_convolution_transpose", "dot", "einsum", "gru_cell",
    "index_put", "linalg_multi_dot", "lstm_cell", "mv", "rnn_relu_cell", "rnn_tanh_cell", "scatter_add", "tensordot",
    "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_trilinear3d", "vdot",
})  # fmt: skip
"""The rest of what CUDA has a rule for and the CPU has none: float16, or the widest input. Not emulated."""

_SPELLINGS: Final = {"__pow__": "pow", "__rpow__": "pow", "__rtruediv__": "reciprocal", "__rdiv__": "reciprocal",
                     "vector_norm": "linalg_vector_norm", "matrix_norm": "linalg_matrix_norm"}  # fmt: skip


class CudaAutocast(TorchFunctionMode):
    """Inside it, and inside a CPU's float16 autocast, `FLOAT32` is computed in float32, and BCELoss raises."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        name = _SPELLINGS.get(name, name)
        if name == "binary_cross_entropy" and torch.is_autocast_enabled("cpu"):
            raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.")
        if name in FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_widened, args), tree_map(_widened, dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float16 else value
