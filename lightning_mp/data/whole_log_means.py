"""The guard against numbers of a user or an item that were taken over the whole log, rows to come included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.leakage import FEWEST_KEYS, Samples, length_of
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.errors import LeakageError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
_LIKE: Final = 0.999
"""Correlation of keys' values with the keys' means over the whole log from which on they are taken to be those."""
_PIECE: Final = 1 << 19
"""Rows that are looked at a time; beside each stands a number for every key."""


def require_no_full_history(
    name: str, values: Float64, samples: Samples, targets: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Refuse a number of a user or an item that is a mean, or a count, over the whole log, later rows included.

    Args:
        name: Of the feature.
        values: (N,) NaN where missing.
        samples: The rows.
        targets: (N,) columns whose means are looked for, such as the label.

    Raises:
        LeakageError: It is.
    """
    for who, codes in (("user", samples.user), ("item", samples.item)):
        keys = _Keys(codes=codes, values=values, targets=targets)
        if np.count_nonzero(keys.counts > 1) < FEWEST_KEYS:
            continue
        for what, likeness in zip(keys.names, keys.likeness(), strict=True):
            if likeness > _LIKE:
                raise _refusal(name, f"{what} by {who}", who, codes, values=values, samples=samples)


class _Keys:
    """What the rows of each key have in common."""

    def __init__(self, *, codes: Int64, values: Float64, targets: Mapping[str, npt.NDArray[Any]]) -> None:
        self.codes, self.values, self.targets = codes, values, targets
        size = int(codes.max(initial=-1)) + 1
        self.counts = np.zeros(size, dtype=np.int64)
        self.totals = {target: (np.zeros(size), np.zeros(size)) for target in targets}
        for piece in row_pieces(len(codes), _PIECE):
            present = ~np.isnan(values[piece])
            here = codes[piece][present]
            self.counts += np.bincount(here, minlength=size)
            for target, (total, given) in self.totals.items():
                numbers = targets[target][piece][present]
                known = ~np.isnan(numbers)
                np.add(total, np.bincount(here[known], numbers[known], minlength=size), out=total)
                np.add(given, np.bincount(here[known], minlength=size), out=given)

    @property
    def names(self) -> list[str]:
        """What is looked for."""
        means = [(f"the mean of `{target}`", f"the mean of `{target}` in the other rows") for target in self.targets]
        return [*(name for pair in means for name in pair), "the number of rows"]

    def likeness(self) -> list[float]:
        """How the values go with each of `names`, among the keys of several rows: the size of their correlation."""
        first = [_Moments() for _ in (*self.names, "")]
        for piece in self._pieces():
            for moments, numbers in zip(first, piece, strict=True):
                moments.add(numbers)
        *made, own = first
        squares, products = np.zeros(len(first)), np.zeros(len(made))
        for piece in self._pieces():
            centred = [moments.centred(numbers) for moments, numbers in zip(first, piece, strict=True)]
            squares += [float(numbers @ numbers) for numbers in centred]
            products += [float(numbers @ centred[-1]) for numbers in centred[:-1]]
        return [
            abs(float(product / np.sqrt(square * squares[-1])))
            if own.rows >= FEWEST_KEYS and moments.varies and own.varies and square * squares[-1] > 0
            else 0.0
            for moments, square, product in zip(made, squares, products, strict=False)
        ]

    def _pieces(self) -> Iterator[list[Float64]]:
        """What is looked for, and the values behind it, of the rows whose key has several."""
        for piece in row_pieces(len(self.codes), _PIECE):
            often = ~np.isnan(self.values[piece]) & (self.counts[self.codes[piece]] > 1)
            here, made = self.codes[piece][often], []
            for target, (total, given) in self.totals.items():
                numbers = self.targets[target][piece][often].astype(np.float64)
                known = ~np.isnan(numbers)
                made.append(total[here] / np.maximum(given[here], 1))
                made.append((total[here] - np.where(known, numbers, 0.0)) / np.maximum(given[here] - known, 1))
            yield [*made, self.counts[here].astype(np.float64), self.values[piece][often]]


@dataclass(slots=True)
class _Moments:
    rows: int = 0
    total: float = 0.0
    smallest: float = np.inf
    largest: float = -np.inf

    @property
    def varies(self) -> bool:
        return self.smallest < self.largest

    def add(self, numbers: Float64) -> None:
        self.rows += len(numbers)
        self.total += float(numbers.sum())
        self.smallest = min(self.smallest, float(numbers.min(initial=np.inf)))
        self.largest = max(self.largest, float(numbers.max(initial=-np.inf)))

    def centred(self, numbers: Float64) -> Float64:
        # Over the largest magnitude: squares of huge numbers would overflow.
        return (numbers - self.total / self.rows) / (max(abs(self.smallest), abs(self.largest)) or 1.0)


def _refusal(name: str, what: str, who: str, codes: Int64, *, values: Float64, samples: Samples) -> LeakageError:
    last = np.full(int(codes.max()) + 1, np.iinfo(np.int64).min)
    for piece in row_pieces(len(codes), _PIECE):
        present = ~np.isnan(values[piece])
        np.maximum.at(last, codes[piece][present], samples.time[piece][present])
    seeing, furthest, first = 0, 0, (0, 0, 0)
    for piece in row_pieces(len(codes), _PIECE):
        until = last[codes[piece]]
        ahead = np.where(np.isnan(values[piece]), 0, until - samples.time[piece])
        rows = np.flatnonzero(ahead > 0)
        if len(rows):
            row = rows[np.lexsort((samples.row[piece][rows], samples.time[piece][rows]))[0]]
            found = (int(samples.time[piece][row]), int(samples.row[piece][row]), int(until[row]))
            first = min(first, found) if seeing else found
            seeing, furthest = seeing + len(rows), max(furthest, int(ahead.max()))
    return LeakageError(
        f"feature `{name}` is {what} over the whole log, rows to come included: {seeing:,} of "
        f"{len(values):,} rows see ahead; the first is row {first[1]:,}, at {to_iso(first[0])}, which knows of rows "
        f"until {to_iso(first[2])}; the furthest sees {length_of(furthest)} ahead",
        f"use what came before each row: `history: {{of: ..., by: [{who}], as: mean}}`",
    )
