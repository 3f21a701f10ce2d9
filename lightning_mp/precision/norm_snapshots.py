"""Running statistics as they were when they last were finite."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_mp.precision.host_copies import HostCopies
from lightning_mp.precision.norm_buffers import norm_layers

_COPIES = 3
_OF_NUMPY = (torch.float16, torch.float32, torch.float64, torch.int64)


class _Group:
    """Statistics of one device and type, and room for copies of them."""

    def __init__(self, buffers: list[Tensor]) -> None:
        sizes = [buffer.numel() for buffer in buffers]
        room = torch.zeros(_COPIES, sum(sizes), dtype=buffers[0].dtype, device=buffers[0].device)
        self._buffers = buffers
        self._flats = list(room)
        self._zeros = torch.zeros_like(room[0]) if room.is_floating_point() else None
        self._views = [
            [part.view_as(buffer) for part, buffer in zip(torch.split(flat, sizes), buffers, strict=True)]
            for flat in self._flats
        ]

    def copy(self, number: int) -> Tensor | bool:
        """Write a copy; True where all of it is finite, or on a device zero, and NaN where it is not."""
        torch._foreach_copy_(self._views[number], self._buffers)
        return True if self._zeros is None else torch.dot(self._flats[number], self._zeros)  # a quick pass

    def restore(self, number: int) -> None:
        """Put a copy back."""
        for buffer, view in zip(self._buffers, self._views[number], strict=True):
            buffer.data.copy_(view)


class _HostGroup(_Group):
    """The same in the memory of the host, copied without torch, which takes ten times as long to begin."""

    def __init__(self, buffers: list[Tensor]) -> None:
        super().__init__(buffers)
        self._sources = [_memory(buffer) for buffer in buffers]
        self._targets = [[_memory(view) for view in views] for views in self._views]
        self._arrays = [flat.numpy() for flat in self._flats]
        self._told = bytearray(len(self._arrays[0]))
        self._finite = np.frombuffer(self._told, np.bool_)

    @staticmethod
    def takes(buffers: list[Tensor]) -> bool:
        """Whether these buffers lie where, and as, it needs them."""
        return buffers[0].dtype in _OF_NUMPY and all(
            buffer.is_cpu and buffer.is_contiguous() and type(buffer) is Tensor for buffer in buffers
        )

    @override
    def copy(self, number: int) -> Tensor | bool:
        for target, source in zip(self._targets[number], self._sources, strict=True):
            target[:] = source
        if self._zeros is None:
            return True
        np.isfinite(self._arrays[number], self._finite)
        return 0 not in self._told


def _memory(tensor: Tensor) -> memoryview:
    return tensor.detach().view(-1).numpy().data


class NormSnapshots:
    """Copies of a module's running statistics, taken after every batch, and which of them are finite.

    One copy is written while the device may still judge another; the third is the last one known to be finite.

    Args:
        module: The outermost module; it may have no normalisation.

    Attributes:
        restored: Times that a copy was put back.
    """

    def __init__(self, module: nn.Module) -> None:
        self.restored = 0
        statistics = [
            buffer
            for _, layer in norm_layers(module)
            for name, buffer in layer.named_buffers(recurse=False)
            # The count of batches is a part of the statistics only where they are plain averages.
            if buffer.is_floating_point() or (name == "num_batches_tracked" and layer.momentum is None)
        ]
        self._groups: list[_Group] = []
        for kind in dict.fromkeys((buffer.device, buffer.dtype) for buffer in statistics):
            own = [buffer for buffer in statistics if (buffer.device, buffer.dtype) == kind]
            self._groups.append(_HostGroup(own) if _HostGroup.takes(own) else _Group(own))
        self._on_the_way = HostCopies()
        self._good: int | None = None
        self._next = 0

    def take(self) -> None:
        """Copy the statistics and ask the device whether they are finite; does not wait."""
        if not self._groups:
            return
        # Beside the good copy and those that wait for their answer one must be free to be written.
        if len(self._on_the_way):
            self.settle(wait=len(self._on_the_way) >= _COPIES - 1)
        finite = True
        flags: list[Tensor] = []
        for group in self._groups:
            answer = group.copy(self._next)
            if isinstance(answer, Tensor):
                flags.append(answer)
            else:
                finite = finite and answer
        if flags and finite:
            if len(flags) > 1:
                flags = [torch.stack([flag.to(flags[0].device, torch.float32) for flag in flags]).sum()]
            self._on_the_way.push(flags[0], self._next)
        else:
            self._on_the_way.give(0.0 if finite else math.nan, self._next)
        self._next = (self._next + 1) % _COPIES
        if self._next == self._good:
            self._next = (self._next + 1) % _COPIES

    def settle(self, *, wait: bool) -> None:
        """Put the last finite copy back if a later one turned out not to be finite.

        Args:
            wait: Whether to wait for the device; else only what it has answered counts.
        """
        bad = False
        for copy, flag in self._on_the_way.arrived(wait=wait):
            if bad:
                continue  # taken after the bad one, and spoilt by it
            if math.isfinite(flag):
                self._good = copy
            else:
                bad = True
        if bad and self._good is not None:
            self._on_the_way.arrived(wait=True)  # whatever is on its way was spoilt too
            for group in self._groups:
                group.restore(self._good)
            self.restored += 1
