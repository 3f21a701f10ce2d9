"""Vocabulary: from an id or a category to the row of its embedding, and back."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.errors import DataError

MISSING_TEXT = ""
MISSING_INTEGER = int(np.iinfo(np.int64).min)
Values = Sequence[str | None] | Sequence[int | None] | npt.NDArray[np.object_] | npt.NDArray[np.int64]
Entries = Sequence[str] | Sequence[int] | npt.NDArray[np.object_] | npt.NDArray[np.int64]


class Vocabulary:
    """Known values in a fixed order; the first stands at row 1, for row 0 is "unknown".

    Entries are all text or all int64. Text is compared exactly: `"7"`, `"007"` and `"7 "` are three entries. What
    stands for "missing" (`None`, the empty text, the smallest int64) is never an entry and always encodes to 0.

    Args:
        entries: Distinct values, in the order of their rows.

    Attributes:
        entries: The values without row 0: an object array of `str`, or an int64 array.

    Raises:
        DataError: A value stands twice, is a missing value, or text and numbers are mixed.

    Example:
        >>> brands = Vocabulary(["acme", "zeta"])
        >>> brands.size, brands.encode(["zeta", "new", None, ""]).tolist()
        (3, [2, 0, 0, 0])
        >>> brands.decode([2, 0]).tolist()
        ['zeta', None]
    """

    __slots__ = ("_row_of", "entries")

    def __init__(self, entries: Entries) -> None:
        values = entries.tolist() if isinstance(entries, np.ndarray) else list(entries)
        self.entries: npt.NDArray[np.object_] | npt.NDArray[np.int64] = _as_array(values)
        self._row_of: dict[object, int] | None = None
        distinct = set(values)
        if len(distinct) != len(values):
            twice = next(value for value, count in Counter(values).items() if count > 1)
            raise DataError(f"{twice!r} stands twice in a vocabulary", "give each value once")
        for missing in (MISSING_TEXT, MISSING_INTEGER):
            if missing in distinct:
                raise DataError(f"{missing!r} stands for a missing value, a vocabulary cannot hold it", "leave it out")

    @property
    def size(self) -> int:
        """Rows of the embedding table: the entries and the unknown row 0."""
        return len(self.entries) + 1

    @property
    def is_text(self) -> bool:
        """Whether the entries are text; else they are int64. An empty vocabulary counts as text."""
        return self.entries.dtype == np.object_

    @property
    def digest(self) -> str:
        """sha256 of the entries in order, and of their type."""
        record = json.dumps(["string" if self.is_text else "int64", self.entries.tolist()], ensure_ascii=True)
        return hashlib.sha256(record.encode()).hexdigest()

    def encode(self, values: Values) -> npt.NDArray[np.int32]:
        """Rows of `values`.

        Args:
            values: (N,) text or integers, in the type of the entries; `None` is missing.

        Returns:
            (N,) int32; 0 for what is missing or unknown.
        """
        listed = values.tolist() if isinstance(values, np.ndarray) else values
        if self._row_of is None:  # not before it is asked for: of a million entries it takes a hundred megabytes
            self._row_of = {value: row for row, value in enumerate(self.entries.tolist(), start=1)}
        return np.fromiter(map(self._row_of.get, listed, repeat(0)), dtype=np.int32, count=len(listed))

    def decode(self, indices: npt.ArrayLike) -> npt.NDArray[np.object_]:
        """Values that stand at `indices`.

        Args:
            indices: (N,) integers in [0, size).

        Returns:
            (N,) object array; `None` for row 0.

        Raises:
            DataError: An index is outside the vocabulary.
        """
        rows = np.asarray(indices, dtype=np.int64)
        outside = rows[(rows < 0) | (rows >= self.size)]
        if outside.size:
            raise DataError(f"row {outside[0]} is outside a vocabulary of {self.size:,} rows", "encode with this one")
        return np.concatenate([np.array([None], dtype=np.object_), self.entries.astype(np.object_)])[rows]

    @classmethod
    def fit(cls, values: Values, *, min_count: int = 1, max_size: int | None = None) -> Vocabulary:
        """Learn a vocabulary: the most frequent value first, equally frequent ones from small to large.

        Args:
            values: (N,) text or integers of the training part; missing ones are passed over.
            min_count: Rows a value must have; rarer ones are left to row 0.
            max_size: Rows kept at most, row 0 included.
        """
        counted = Counter(values.tolist() if isinstance(values, np.ndarray) else values)
        return cls.from_counts(counted.keys(), counted.values(), min_count=min_count, max_size=max_size)

    @classmethod
    def from_counts(
        cls,
        values: Iterable[str | int | None],
        counts: Iterable[int],
        *,
        min_count: int = 1,
        max_size: int | None = None,
    ) -> Vocabulary:
        """`fit` for distinct values that were counted already.

        Args:
            values: Distinct values; missing ones are passed over.
            counts: How many rows have each.
            min_count: As in `fit`.
            max_size: As in `fit`.
        """
        kept: list[Any] = []
        often: list[int] = []
        for value, count in zip(values, counts, strict=True):
            if value is not None and value not in (MISSING_TEXT, MISSING_INTEGER) and count >= min_count:
                kept.append(value)
                often.append(int(count))
        texts = sum(isinstance(value, str) for value in kept)
        if texts not in (0, len(kept)):
            raise DataError("a vocabulary cannot hold text and integers together", "give the column one type")
        # By value, then by count: no pair of the two is made, which a million users would feel.
        order = np.array(sorted(range(len(kept)), key=kept.__getitem__), dtype=np.int64)
        order = order[np.argsort(-np.array(often, dtype=np.int64)[order], kind="stable")]
        return cls([kept[place] for place in order[: None if max_size is None else max(max_size - 1, 0)].tolist()])

    def __len__(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.entries):,} {'texts' if self.is_text else 'integers'} and unknown)"


def _as_array(values: Sequence[object]) -> npt.NDArray[np.object_] | npt.NDArray[np.int64]:
    if all(type(value) is str for value in values):
        array = np.empty(len(values), dtype=np.object_)
        array[:] = values
        return array
    if all(type(value) is int for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError as error:
            raise DataError("a vocabulary's integers must fit int64", "give the column as text") from error
    raise DataError("a vocabulary holds text or integers, all of one type", "give the column one type")
