"""DistinctSketch: the number of different values of a column, exact while there are few."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.working_memory import WorkingMemory

Hashes = npt.NDArray[np.uint64]

SIZE: Final = 4096
"""Hashes kept: up to as many different values are counted exactly, beyond with a standard error of 1.6 %."""
_SPACE: Final = 2.0**64
_SORTED: Final = 2048
"""Hashes that are simply sorted."""


class DistinctSketch:
    """The `SIZE` smallest hashes met: the same whatever the order of the rows and however they were split.

    Source:
        Bar-Yossef et al., Counting Distinct Elements in a Data Stream (RANDOM 2002), the k minimum values.
    """

    def __init__(self) -> None:
        self._smallest: Hashes = np.empty(0, dtype=np.uint64)
        # Hashes that may be among the smallest wait until there are enough of them to be worth sorting.
        self._waiting: list[Hashes] = []
        self._many = 0
        # What was met lately, by 16 of its bits: columns of few values are filtered by it before they are sorted.
        self._met: Hashes | npt.NDArray[np.uint32] | None = None

    def update(self, hashes: npt.NDArray[np.uint32] | Hashes) -> None:
        """Take in hashes, repeated ones included; those of 32 bits stand for the upper half of a longer one."""
        short = hashes.dtype == np.uint32
        if len(self._smallest) == SIZE:
            limit = self._smallest[-1]
            below = hashes < (np.uint32(limit >> np.uint64(32)) if short else limit)
            hashes = hashes.take(np.flatnonzero(below))  # faster than a mask of bits that follow no order
        elif len(hashes) > 8 * SIZE:
            hashes = _few_smallest(hashes)
        if len(hashes) > _SORTED:
            hashes = self._new(hashes)
        self._wait(hashes)

    def _new(self, hashes: Any) -> Any:
        """Those that the table of the ones met lately does not hold."""
        if self._met is None:
            self._met = np.zeros(1 << 16, dtype=hashes.dtype)
            self._met[0] = np.iinfo(hashes.dtype).max  # zero would stand for itself here, and was not met
        hashes = hashes.take(np.flatnonzero(self._met.take(_slots(hashes)) != hashes))
        if len(hashes) > _SORTED:
            head = hashes[:_SORTED]
            self._wait(head)
            self._met[_slots(head)] = head
            hashes = hashes.take(np.flatnonzero(self._met.take(_slots(hashes)) != hashes))
        return hashes

    def _wait(self, hashes: Any) -> None:
        if len(hashes):
            longer = hashes.astype(np.uint64)  # a copy: hashes may stand in a memory that is used again
            self._waiting.append(longer << np.uint64(32) if hashes.dtype == np.uint32 else longer)
            self._many += len(hashes)
            if self._many >= SIZE:
                self._kept()

    def _kept(self) -> Hashes:
        """The smallest ones of all, rising."""
        if self._waiting:
            self._smallest = _without_repeats(np.concatenate([self._smallest, *self._waiting]))[:SIZE]
            self._waiting, self._many = [], 0
        return self._smallest

    def merge(self, other: DistinctSketch) -> None:
        """Take in what another sketch kept."""
        self._wait(other._kept())

    @property
    def exact(self) -> bool:
        """Whether `count` is exact."""
        return len(self._kept()) < SIZE

    @property
    def count(self) -> int:
        """Different values, estimated where not `exact`."""
        if self.exact:
            return len(self._kept())
        return round((SIZE - 1) * _SPACE / (float(self._kept()[-1]) + 1.0))


def _few_smallest(hashes: Any) -> Any:
    """Enough of the smallest ones for a sketch, where nearly all differ; else all of them."""
    below = hashes < hashes.dtype.type(np.iinfo(hashes.dtype).max // (len(hashes) // (2 * SIZE)))
    few = _without_repeats(hashes.take(np.flatnonzero(below)))
    return few if len(few) >= SIZE else hashes


def _slots(hashes: Any) -> Any:
    """16 bits of each: not the upper ones, which are zero in the smallest hashes."""
    kind = hashes.dtype.type
    return (hashes >> kind(hashes.dtype.itemsize * 8 - 28)) & kind(0xFFFF)


def _without_repeats(hashes: Any) -> Any:
    """The different ones, rising: all, or at least the `SIZE` smallest."""
    if not len(hashes):
        return hashes
    if len(hashes) > 6 * SIZE:  # the smallest ones are enough, when as many of them differ
        few = _without_repeats(np.partition(hashes, 4 * SIZE)[: 4 * SIZE])
        if len(few) >= SIZE:
            return few
    ordered = np.sort(hashes)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]


def hashes_of(numbers: npt.NDArray[Any], memory: WorkingMemory | None = None) -> npt.NDArray[np.uint32] | Hashes:
    """Hashes of numbers; equal numbers have equal ones, and different ones have different ones.

    Args:
        numbers: (N,) float32, float64 or int64; the two zeros are one number.
        memory: To work in, where there are few enough numbers and no zero among them; its `hashes` and `shifted` are
            overwritten, and the hashes of float32 numbers stand in it.
    """
    if numbers.dtype == np.float32:
        # murmur3's finaliser for 32 bits, a bijection, but for its last step, which leaves the upper half as it is
        if memory is None:
            bits = (numbers + np.float32(0.0)).view(np.uint32)
            h, shifted = np.empty_like(bits), np.empty_like(bits)
        else:
            bits = np.ascontiguousarray(numbers).view(np.uint32)
            h, shifted = memory.hashes[: len(bits)], memory.shifted[: len(bits)]
        np.bitwise_xor(bits, np.right_shift(bits, np.uint32(16), out=shifted), out=h)
        h *= np.uint32(0x85EBCA6B)
        h ^= np.right_shift(h, np.uint32(13), out=shifted)
        h *= np.uint32(0xC2B2AE35)
        return h
    bits64 = (numbers + 0.0 if numbers.dtype == np.float64 else numbers.astype(np.int64)).view(np.uint64)
    return mixed(bits64)


def mixed(bits: npt.NDArray[np.uint64]) -> Hashes:
    """SplitMix64's finaliser, a bijection on 64 bits (Steele, Lea and Flood, 2014)."""
    h = bits + np.uint64(0x9E3779B97F4A7C15)
    shifted = np.empty_like(h)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h ^= np.right_shift(h, np.uint64(shift), out=shifted)
        h *= np.uint64(factor)
    h ^= np.right_shift(h, np.uint64(31), out=shifted)
    return h
