"""RowSample: the same rows of every column, chosen by a hash of their number, to compare columns with each other."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.distinct_sketch import mixed

Float64 = npt.NDArray[np.float64]

ROWS: Final = 256
"""Rows that are compared."""
_PIECE: Final = 1 << 15


class RowSample:
    """Chooses the rows with the smallest hashes: the same ones in every pass, however it is cut."""

    def __init__(self) -> None:
        self._smallest: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def choose(self, first_row: int, rows: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
        """Places, within a piece of rows, that may be among the chosen; and their hashes.

        Args:
            first_row: Number of the piece's first row.
            rows: Rows of the piece.
        """
        hashes = mixed(np.arange(first_row, first_row + rows, dtype=np.uint64))
        if len(self._smallest) == ROWS:
            places = np.flatnonzero(hashes < self._smallest[-1])
        elif rows > ROWS:
            places = np.argpartition(hashes, ROWS)[:ROWS]
        else:
            places = np.arange(rows)
        self._smallest = np.sort(np.concatenate([self._smallest, hashes[places]]))[:ROWS]
        return places, hashes[places]


def sampled_rows(rows: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64]]:
    """The rows that `RowSample` ends with, rising, and their hashes.

    Args:
        rows: Of the whole table.
    """
    chooser, places, hashes = RowSample(), [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.uint64)]
    for first in range(0, rows, _PIECE):
        here, their = chooser.choose(first, min(_PIECE, rows - first))
        places.append(here + first)
        hashes.append(their)
    every, marks = np.concatenate(places), np.concatenate(hashes)
    kept = np.argsort(marks)[:ROWS]
    kept = kept[np.argsort(every[kept])]
    return every[kept], marks[kept]


class SampledColumn:
    """What one column holds in the chosen rows."""

    def __init__(self) -> None:
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._values: list[Float64] = []

    def take(self, hashes: npt.NDArray[np.uint64], values: Float64) -> None:
        """Keep candidates.

        Args:
            hashes: (K,) as `RowSample.choose` gave them.
            values: (K,) what the column holds there; NaN where it is missing.
        """
        self._hashes.append(hashes)
        self._values.append(values)

    def values(self) -> Float64:
        """The chosen rows' values, in the same order for every column."""
        if not self._hashes:
            return np.empty(0)
        order = np.argsort(np.concatenate(self._hashes))[:ROWS]
        return np.concatenate(self._values)[order]


def duplicates(samples: list[tuple[object, Float64]]) -> dict[int, int]:
    """Columns that hold what an earlier one holds.

    Args:
        samples: Of each column, something that is equal for equal columns (its statistics), and its sampled values.

    Returns:
        Column to the first one like it.
    """
    first: dict[tuple[object, bytes], int] = {}
    found = {}
    for place, (signature, values) in enumerate(samples):
        key = (signature, (values + 0.0).tobytes())
        if key in first:
            found[place] = first[key]
        else:
            first[key] = place
    return found


def near_duplicates(samples: list[Float64], limit: float) -> dict[int, tuple[int, float]]:
    """Columns of numbers that nearly follow an earlier one, up to a factor and a shift.

    Args:
        samples: (K,) of each column; NaN where it is missing. Columns with fewer than 30 numbers or 10 different ones
            are not compared.
        limit: Of the magnitude of Pearson's correlation.

    Returns:
        Column to the first one it follows, and the correlation.
    """
    usable, rows = [], []
    for place, values in enumerate(samples):
        there = np.isfinite(values)
        if np.count_nonzero(there) < 30 or len(np.unique(values[there])) < 10:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            away = np.where(there, values - values[there].mean(), 0.0)
            size = np.sqrt((away**2).sum())
        if np.isfinite(size) and size > 0:
            usable.append(place)
            rows.append(away / size)
    found: dict[int, tuple[int, float]] = {}
    if not rows:
        return found
    matrix = np.stack(rows)
    for start in range(0, len(matrix), 512):
        products = matrix[start : start + 512] @ matrix.T
        for row, column in zip(*np.nonzero(np.abs(products) >= limit), strict=True):
            later = start + int(row)
            if int(column) < later and usable[later] not in found:
                found[usable[later]] = usable[int(column)], float(products[row, column])
    return found
