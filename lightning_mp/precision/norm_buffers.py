"""Copies of the running statistics of normalisation layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_NORMS = (nn.modules.batchnorm._NormBase,)  # noqa: SLF001 - the only name that covers batch, instance and sync norm


def norm_layers(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers of batch and instance normalisation, of any number of dimensions, synchronised ones included.

    Args:
        module: The outermost module.

    Returns:
        Pairs of name and layer.

    Example:
        >>> [name for name, _ in norm_layers(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))]
        ['1']
    """
    return [(name, layer) for name, layer in module.named_modules() if isinstance(layer, _NORMS)]


class NormBuffers:
    """The floating and counting buffers of a module's normalisation layers, and a copy of them.

    Args:
        module: The outermost module. Only layers that track running statistics count; there may be none.

    Attributes:
        names: Names of the buffers.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> buffers = NormBuffers(norm)
        >>> buffers.save()
        >>> _ = norm(torch.full((4, 2), float("nan")))
        >>> buffers.restore()
        >>> norm.running_mean
        tensor([0., 0.])
    """

    def __init__(self, module: nn.Module) -> None:
        buffers = {
            f"{name}.{own}".removeprefix("."): buffer
            for name, layer in norm_layers(module)
            for own, buffer in layer.named_buffers(recurse=False)
        }
        self.names = list(buffers)
        self._buffers = list(buffers.values())
        self._copies: list[Tensor] = []

    @torch.no_grad()
    def save(self) -> None:
        """Copy the buffers, over the last copy."""
        if not self._copies:
            self._copies = [torch.empty_like(buffer) for buffer in self._buffers]
        if self._buffers:
            torch._foreach_copy_(self._copies, self._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copy back; a graph that has saved the buffers for its backward pass does not mind."""
        for buffer, copy in zip(self._buffers, self._copies, strict=True):
            buffer.data.copy_(copy)
