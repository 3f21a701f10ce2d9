"""Rejected rows: counted by reason, the first of them kept with line, column and value."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.errors import DataError

KEPT: Final = 10_000
"""Rejected rows that are kept with all details; the counts go on beyond."""
_SCHEMA: Final = pa.schema(
    [("line", pa.int64()), ("column", pa.string()), ("value", pa.string()), ("reason", pa.string())]
)


@dataclass(slots=True)
class Rejects:
    """Rows that were left out, and why.

    Attributes:
        total: How many.
        reasons: How many by column and reason.
        file: Which is being read, where there are several.
    """

    total: int = 0
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    file: str = ""
    _rows: list[tuple[int, str, str, str, str]] = field(default_factory=list)
    _files: dict[str, int] = field(default_factory=dict)

    def add(self, line: int, column: str, value: str, reason: str) -> None:
        """Note one row.

        Args:
            line: Where it starts in the file, from 1; in a file without lines the row's number, from 1.
            column: Of the file; empty when the whole row is at fault.
            value: What stood there, as text; only its first 200 characters are kept.
            reason: What is wrong with it.
        """
        self.total += 1
        self.reasons[column, reason] += 1
        if len(self._rows) < KEPT:
            self._files.setdefault(self.file, len(self._files))
            self._rows.append((line, column, value if len(value) <= 200 else value[:199] + "…", reason, self.file))

    def add_many(
        self, wrong: npt.NDArray[np.bool_], lines: npt.NDArray[np.int64], column: str, values: pa.Array, reason: str
    ) -> None:
        """Note every row that `wrong` marks.

        Args:
            wrong: (N,).
            lines: (N,).
            column: Of the file.
            values: (N,) of any type.
            reason: What is wrong with them.
        """
        where = np.flatnonzero(wrong)
        detailed = where[: max(KEPT - len(self._rows), 0)]
        for line, value in zip(lines[detailed].tolist(), values.take(pa.array(detailed)).to_pylist(), strict=True):
            self.add(line, column, _text(value), reason)
        rest = len(where) - len(detailed)
        self.total += rest
        self.reasons[column, reason] += rest

    def table(self) -> pa.Table:
        """The first rows, by file and line: `line`, `column`, `value`, `reason`, and `file` where one was named."""
        ordered = sorted(self._rows, key=lambda row: (self._files[row[4]], row))
        schema = _SCHEMA if set(self._files) <= {""} else _SCHEMA.append(pa.field("file", pa.string()))
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=False)) for row in ordered], schema=schema)

    def require_share(self, file: str, rows: int, max_bad_share: float) -> None:
        """Refuse a file of which too many rows were rejected.

        Args:
            file: As the user named it.
            rows: All rows of the file.
            max_bad_share: In [0, 1].

        Raises:
            DataError: More were rejected; the most common reasons and the first row are told.
        """
        if not self.total or self.total <= max_bad_share * rows:
            return
        line, column, value, reason, place = min(self._rows, key=lambda row: (self._files[row[4]], row))
        of = f"column `{column}`: {value!r} {reason}" if column else f"the row {reason}: {value!r}"
        there = f" of `{place}`" if place else ""
        raise DataError(
            f"`{file}`: {self.total:,} of {rows:,} rows are bad ({self.total / rows:.3%}, allowed are "
            f"{max_bad_share:.3%}); first at line {line:,}{there}, {of}; all: {self.summary()}",
            self._hint(self.total / rows),
        )

    def summary(self) -> str:
        """The four most common reasons with their counts, in one line; empty when nothing was rejected."""
        return "; ".join(
            f"{count:,} x {f'`{name}` ' if name else ''}{why}" for (name, why), count in self.reasons.most_common(4)
        )

    def _hint(self, share: float) -> str:
        hints = {
            "names no time zone": "declare the zone with `columns.time_zone`, as in `time_zone: Europe/Berlin`",
            "decimal comma": "declare it with `csv.decimal: ','`",
            "is not a flag": "a flag is a column of 0 and 1; words, one event a row, are named with `event: COLUMN`",
        }
        for words, hint in hints.items():
            if 2 * sum(count for (_, reason), count in self.reasons.items() if words in reason) > self.total:
                return hint
        if share > 0.99:
            return "look at the first of them: so many are a wrong `columns` or `csv` setting, not bad rows"
        return f"mend the file, or allow this share with `max_bad_share: {np.ceil(share * 1000) / 1000:g}`"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def positions(mask: pa.Array) -> npt.NDArray[np.bool_]:
    """An Arrow mask as NumPy; null counts as false."""
    filled = pc.fill_null(mask, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=bool)
