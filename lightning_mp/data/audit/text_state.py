"""TextState: what one pass over a column of text keeps."""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.audit.bins import Counts
from lightning_mp.data.audit.distinct_sketch import DistinctSketch, mixed
from lightning_mp.data.audit.statistics import ColumnStatistics

_NUMBER: Final = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_COMMA: Final = r"^\s*[+-]?\d+,\d+\s*$"
_DIGITS: Final = r"^\s*[+-]?\d+\s*$"
_KINDS: Final = 1000
"""Different texts up to which the label is counted by text."""


class TextState:
    """What one pass over a column of text keeps.

    Attributes:
        rows: Rows seen.
        nulls: Missing ones.
        empty: Empty texts.
        longest: Characters of the longest text.
        numbers: Rows that read as a number with a decimal point.
        commas: Rows that read as a number with a decimal comma.
        digits: Rows that read as an integer.
        example: A text that reads as no number, the smallest one in order.
        distinct: Different texts.
        part_rows: (2, 2) rows and missing ones of the first and the last part.
    """

    def __init__(self, *, label: bool = False) -> None:
        self.rows = self.nulls = self.empty = self.longest = self.numbers = self.commas = self.digits = 0
        self.example: str | None = None
        self.distinct = DistinctSketch()
        self.part_rows: Counts = np.zeros((2, 2), dtype=np.int64)
        self._by_text: dict[str, npt.NDArray[np.int64]] | None = {} if label else None

    def update(
        self, texts: pa.Array, *, label: npt.NDArray[np.int8] | None = None, part: npt.NDArray[np.int8] | None = None
    ) -> None:
        """Take in a piece of the column.

        Args:
            texts: (N,) string, with nulls.
            label: (N,) 1 with the label, 0 without, -1 where it is missing.
            part: (N,) 0 in the first part, 1 in the last, -1 between.
        """
        import pyarrow.compute as pc  # only where there is text: it takes a tenth of the time that a start does

        self.rows += len(texts)
        self.nulls += texts.null_count
        if part is not None:
            missing = np.asarray(texts.is_null().to_numpy(zero_copy_only=False), dtype=bool)
            for index in (0, 1):
                inside = part == index
                self.part_rows[index] += (np.count_nonzero(inside), np.count_nonzero(inside & missing))
        encoded = texts.dictionary_encode()
        words = encoded.dictionary
        codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        there = codes[codes >= 0]
        if not len(there):
            return
        counts = np.bincount(there, minlength=len(words))
        self.longest = max(self.longest, pc.max(pc.utf8_length(words)).as_py() or 0)
        is_number, is_comma, is_digits, is_empty = (
            np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)
            for mask in (
                *(pc.match_substring_regex(words, pattern) for pattern in (_NUMBER, _COMMA, _DIGITS)),
                pc.equal(words, ""),
            )
        )
        self.numbers += int(counts[is_number].sum())
        self.commas += int(counts[is_comma].sum())
        self.digits += int(counts[is_digits].sum())
        self.empty += int(counts[is_empty].sum())
        other = words.filter(pa.array(~(is_number | is_comma | is_empty)))
        if len(other):
            smallest = str(pc.min(other).as_py())
            self.example = smallest if self.example is None else min(self.example, smallest)
        listed = words.to_pylist()
        self.distinct.update(_hashes(listed))
        self._count_label(listed, codes, label)

    def _count_label(self, words: list[str], codes: npt.NDArray[np.int64], label: npt.NDArray[np.int8] | None) -> None:
        if label is None or self._by_text is None:
            return
        kept = (codes >= 0) & (label >= 0)
        rows = np.bincount(codes[kept], minlength=len(words))
        marked = np.bincount(codes[kept], weights=label[kept], minlength=len(words)).astype(np.int64)
        for word, here, with_label in zip(words, rows.tolist(), marked.tolist(), strict=True):
            held = self._by_text.setdefault(word, np.zeros(2, dtype=np.int64))
            held += (here, with_label)
        if len(self._by_text) > _KINDS:
            self._by_text = None

    def merge(self, other: TextState) -> None:
        """Take in the state of another piece of the same column."""
        for name in ("rows", "nulls", "empty", "numbers", "commas", "digits"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        examples = [text for text in (self.example, other.example) if text is not None]
        self.example = min(examples) if examples else None
        self.distinct.merge(other.distinct)
        self.part_rows += other.part_rows
        mine, theirs = self._by_text, other._by_text
        if mine is None or theirs is None:
            self._by_text = None
            return
        for word, held in theirs.items():
            mine[word] = mine[word] + held if word in mine else held.copy()
        if len(mine) > _KINDS:
            self._by_text = None

    def statistics(self) -> ColumnStatistics:
        """Rows, missing and different ones, and the AUC of the label's rate by text where there are few texts."""
        first, last = (missing / rows if rows else None for rows, missing in self.part_rows.tolist())
        return ColumnStatistics(
            rows=self.rows, missing=self.nulls, distinct=self.distinct.count, distinct_exact=self.distinct.exact,
            auc=self._auc(), missing_first=first, missing_last=last,
        )  # fmt: skip

    def _auc(self) -> float | None:
        # A rate over few rows tells its own labels: at least 20 rows a text on average.
        if not self._by_text or self.rows - self.nulls < 20 * len(self._by_text):
            return None
        table = np.array([held for held in self._by_text.values() if held[0]], dtype=np.float64)
        table = table[np.argsort(table[:, 1] / table[:, 0])]
        above, below = table[:, 1], table[:, 0] - table[:, 1]
        pairs = above.sum() * below.sum()
        if not pairs:
            return None
        return float(((np.cumsum(below) - below / 2) * above).sum() / pairs)


def _hashes(words: list[Any]) -> npt.NDArray[np.uint64]:
    # Two checksums of different families make 64 bits; the finaliser spreads them.
    raw = [word.encode("utf-8", "surrogatepass") for word in words]
    return mixed(np.array([zlib.crc32(text) | zlib.adler32(text) << 32 for text in raw], dtype=np.uint64))
