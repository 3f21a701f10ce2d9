"""Running statistics as they were when they last were finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lightning_mp.precision.host_copies import HostCopies
from lightning_mp.precision.norm_buffers import norm_layers

_COPIES = 3


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
        self._groups: list[tuple[list[Tensor], list[list[Tensor]], list[Tensor], Tensor]] = []
        for kind in dict.fromkeys((buffer.device, buffer.dtype) for buffer in statistics):
            own = [buffer for buffer in statistics if (buffer.device, buffer.dtype) == kind]
            sizes = [buffer.numel() for buffer in own]
            flats = [torch.zeros(sum(sizes), dtype=kind[1], device=kind[0]) for _ in range(_COPIES)]
            views = [
                [part.view_as(buffer) for part, buffer in zip(torch.split(flat, sizes), own, strict=True)]
                for flat in flats
            ]
            self._groups.append((own, views, flats, torch.zeros_like(flats[0])))
        self._on_the_way = HostCopies()
        self._good: int | None = None
        self._next = 0

    @torch.no_grad()
    def take(self) -> None:
        """Copy the statistics and ask the device whether they are finite; does not wait."""
        if not self._groups:
            return
        # Beside the good copy and those that wait for their answer one must be free to be written.
        self.settle(wait=len(self._on_the_way) >= _COPIES - 1)
        flags: list[Tensor] = []
        for own, views, flats, zeros in self._groups:
            torch._foreach_copy_(views[self._next], own)
            if zeros.is_floating_point():
                flags.append(torch.dot(flats[self._next], zeros))  # zero, or NaN where one is not finite: a quick pass
        if len(flags) > 1:
            flags = [torch.stack([flag.to(flags[0].device, torch.float32) for flag in flags]).sum()]
        self._on_the_way.push(flags[0], self._next)
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
            for own, views, *_ in self._groups:
                for buffer, copy_ in zip(own, views[self._good], strict=True):
                    buffer.data.copy_(copy_)
            self.restored += 1
