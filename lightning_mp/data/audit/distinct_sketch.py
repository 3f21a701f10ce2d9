"""DistinctSketch: the number of different values of a column, exact while there are few."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
        # What was met lately, by its upper 16 bits: columns of few values are filtered by it before they are sorted.
        self._met: Hashes | npt.NDArray[np.uint32] | None = None

    def update(self, hashes: npt.NDArray[np.uint32] | Hashes) -> None:
        """Take in hashes, repeated ones included; those of 32 bits stand for the upper half of a longer one."""
        short = hashes.dtype == np.uint32
        if len(self._smallest) == SIZE:
            limit = self._smallest[-1]
            hashes = hashes[hashes < (np.uint32(limit >> np.uint64(32)) if short else limit)]
        if len(hashes) > _SORTED:
            hashes = self._new(hashes)
        self._wait(hashes)

    def _new(self, hashes: Any) -> Any:
        """Those that the table of the ones met lately does not hold."""
        shift = hashes.dtype.type(hashes.dtype.itemsize * 8 - 16)
        if self._met is None:
            self._met = np.zeros(1 << 16, dtype=hashes.dtype)
            self._met[0] = np.iinfo(hashes.dtype).max  # zero would stand for itself here, and was not met
        hashes = hashes[self._met[hashes >> shift] != hashes]
        if len(hashes) > _SORTED:
            head = hashes[:_SORTED]
            self._wait(head)
            self._met[head >> shift] = head
            hashes = hashes[self._met[hashes >> shift] != hashes]
        return hashes

    def _wait(self, hashes: Any) -> None:
        if len(hashes):
            longer = hashes.astype(np.uint64)
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


def _without_repeats(hashes: Any) -> Any:
    """The different ones, rising: all, or at least the `SIZE` smallest."""
    if not len(hashes):
        return hashes
    if len(hashes) > 16 * SIZE:  # the smallest ones are enough, when as many of them differ
        few = _without_repeats(np.partition(hashes, 4 * SIZE)[: 4 * SIZE])
        if len(few) >= SIZE:
            return few
    ordered = np.sort(hashes)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]


def hashes_of(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint32] | Hashes:
    """Hashes of numbers; equal numbers have equal ones, and different ones have different ones.

    Args:
        numbers: (N,) float32, float64 or int64; the two zeros are one number.
    """
    if numbers.dtype == np.float32:
        # murmur3's finaliser for 32 bits, a bijection
        h = (numbers + np.float32(0.0)).view(np.uint32)
        shifted = np.empty_like(h)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            h ^= np.right_shift(h, np.uint32(shift), out=shifted)
            h *= np.uint32(factor)
        h ^= np.right_shift(h, np.uint32(16), out=shifted)
        return h
    bits = (numbers + 0.0 if numbers.dtype == np.float64 else numbers.astype(np.int64)).view(np.uint64)
    return mixed(bits)


def mixed(bits: npt.NDArray[np.uint64]) -> Hashes:
    """SplitMix64's finaliser, a bijection on 64 bits (Steele, Lea and Flood, 2014)."""
    h = bits + np.uint64(0x9E3779B97F4A7C15)
    shifted = np.empty_like(h)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h ^= np.right_shift(h, np.uint64(shift), out=shifted)
        h *= np.uint64(factor)
    h ^= np.right_shift(h, np.uint64(31), out=shifted)
    return h
