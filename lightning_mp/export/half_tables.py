"""Embedding tables stored in float16 and computed with in float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_mp.float_formats import FLOAT16


class HalfTable(nn.Module):
    """An embedding whose table is float16 and whose answers are float32: half the bytes, float32 arithmetic.

    Args:
        table: Weights to store, (rows, width).
    """

    weight: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", table.detach().half())

    def forward(self, indices: Tensor) -> Tensor:
        """Rows of the table, any shape of integers to that shape and (width,), float32."""
        return nn.functional.embedding(indices, self.weight).float()


def halve_tables(module: nn.Module, sample: Mapping[str, Tensor] | None = None) -> dict[str, str]:
    """Replace every `nn.Embedding` that float16 can hold by a `HalfTable`, in place.

    Args:
        module: Changed in place.
        sample: A batch. With it, a table that the module uses for more than look-ups is found and left alone.

    Returns:
        For each table by name why it was left in float32; an empty text where it was not.

    Example:
        >>> network = nn.Sequential(nn.Embedding(4, 2), nn.Flatten())
        >>> halve_tables(network)
        {'0': ''}
        >>> network[0].weight.dtype
        torch.float16
    """
    verdicts: dict[str, str] = {}
    for name, part in list(module.named_modules()):
        if not isinstance(part, nn.Embedding):
            continue
        largest = float(part.weight.detach().abs().max()) if part.weight.numel() else 0.0
        if type(part) is not nn.Embedding or part.max_norm is not None:
            verdicts[name] = f"`{type(part).__name__}` does more than look up rows"
        elif not largest <= FLOAT16.largest:
            verdicts[name] = f"its largest weight is {largest:g}, float16 ends at {FLOAT16.largest:g}"
        elif not name:
            verdicts[name] = "it is the module itself"
        else:
            module.set_submodule(name, HalfTable(part.weight))
            verdicts[name] = "" if sample is None or _runs(module, sample) else "its weights are used outside of it"
            if verdicts[name]:
                module.set_submodule(name, part)
    return verdicts


def _runs(module: nn.Module, sample: Mapping[str, Tensor]) -> bool:
    try:
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            module(dict(sample))
    except Exception:  # whatever a `forward` raises when a table is float16
        return False
    return True


def table_share(module: nn.Module) -> float:
    """Share of a module's weights that stand in embedding tables, in [0, 1]."""
    total = sum(tensor.numel() for tensor in module.state_dict().values() if torch.is_floating_point(tensor))
    tables = sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Embedding | HalfTable))
    return tables / total if total else 0.0
