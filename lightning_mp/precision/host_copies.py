"""Bring numbers from the device to the host without waiting for them."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

_SLOTS = 8
_IN_MEMORY: dict[torch.dtype, Any] = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


class HostCopies:
    """Numbers on their way from the device; on a CPU they are there at once.

    At most eight are on their way; a ninth waits for the first.

    Example:
        >>> copies = HostCopies()
        >>> copies.push(torch.tensor(2.5), "a")
        >>> copies.arrived()
        [('a', 2.5)]
    """

    def __init__(self) -> None:
        self._slots: list[Tensor] = []
        self._numbers: Any = None
        self._waiting: list[tuple[int, Any, torch.cuda.Event | None]] = []
        self._arrived: list[tuple[Any, float]] = []
        self._next = 0

    def __len__(self) -> int:
        """Numbers that `arrived` has not given yet."""
        return len(self._waiting) + len(self._arrived)

    def push(self, number: Tensor, tag: Any) -> None:
        """Send a number.

        Args:
            number: One value, on any device.
            tag: What `arrived` gives back with it.
        """
        # The copy of one number takes torch 30 us between two passes over other memory; here it lies in reach.
        if number.is_cpu and type(number) is Tensor and number.dtype in _IN_MEMORY and not number.is_neg():
            self.give(_IN_MEMORY[number.dtype].from_address(number.data_ptr()).value, tag)
            return
        self._send(number, tag)

    def give(self, number: float, tag: Any) -> None:
        """Add a number that is known already, behind those on their way.

        Args:
            number: Any number.
            tag: What `arrived` gives back with it.
        """
        if self._waiting:
            self._send(torch.tensor(number), tag)
        else:
            self._arrived.append((tag, number))

    def arrived(self, *, wait: bool = False) -> list[tuple[Any, float]]:
        """Numbers that are here and were not given before, in the order they were sent.

        Args:
            wait: Whether to wait for all of them.
        """
        if not self._waiting and not self._arrived:  # asked for at several hooks a step
            return []
        self._take(wait=wait, most=_SLOTS)
        found, self._arrived = self._arrived, []
        return found

    def _send(self, number: Tensor, tag: Any) -> None:
        if not self._slots:
            host = torch.zeros(_SLOTS, pin_memory=number.is_cuda)
            self._slots, self._numbers = list(host), host.numpy()  # read without an operation of torch's
        if len(self._waiting) == _SLOTS:
            self._take(wait=True, most=1)
        with torch.no_grad() if number.requires_grad else nullcontext():
            self._slots[self._next].copy_(number.reshape(()) if number.dim() else number, non_blocking=True)
        event = None
        if number.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            event.record(torch.cuda.current_stream(number.device))
        self._waiting.append((self._next, tag, event))
        self._next = (self._next + 1) % _SLOTS

    def _take(self, *, wait: bool, most: int) -> None:
        while self._waiting and most:
            slot, tag, event = self._waiting[0]
            if event is not None and not event.query():  # type: ignore[no-untyped-call]  # torch leaves it untyped
                if not wait:
                    return
                event.synchronize()
            self._waiting.pop(0)
            self._arrived.append((tag, float(self._numbers[slot])))
            most -= 1
