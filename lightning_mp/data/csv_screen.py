"""Find the records of a CSV block that are not rows of the table: ragged ones, broken quotes, control characters."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.csv_records import RecordCutter, Records
from lightning_mp.data.rejects import KEPT, Rejects

_CONTROLS: Final = bytes(sorted({*range(32), 127} - {9, 10, 13}))
_IS_CONTROL: Final = np.isin(np.arange(256), list(_CONTROLS))


@dataclass(slots=True)
class CsvScreen:
    """Notes the bad records of a block and says which ones are good.

    Args:
        dialect: How the file is written.
        header: Names of the columns, which every record must have as many of.
        rejects: Where bad records are noted.
    """

    dialect: CsvDialect
    header: tuple[str, ...]
    rejects: Rejects

    def good(self, text: bytes, records: Records, first_line: int) -> npt.NDArray[np.bool_]:
        """Which records are rows.

        Args:
            text: The block, UTF-8.
            records: Where its records lie.
            first_line: Line of the file at which the block starts, from 1.

        Returns:
            (N,), one a record.
        """
        kept = np.ones(len(records.starts), dtype=bool)
        kept[list(records.broken)] = False
        self._note(~kept, text, records, first_line, None)
        ragged = kept & self._ragged(text, records)
        self._note(ragged, text, records, first_line, "fields")
        kept &= ~ragged
        controlled = kept & _holds_control(text, records)
        self._note(controlled, text, records, first_line, "control")
        return kept & ~controlled

    def _ragged(self, text: bytes, records: Records) -> npt.NDArray[np.bool_]:
        data = np.frombuffer(text, dtype=np.uint8)
        delimiters = np.flatnonzero(data == ord(self.dialect.delimiter))
        found = np.searchsorted(delimiters, records.ends) - np.searchsorted(delimiters, records.starts)
        ragged = found != len(self.header) - 1
        exact = RecordCutter(self.dialect.delimiter, self.dialect.quote).record_of(len(self.header))
        for index in np.flatnonzero(records.quoted).tolist():
            match = exact.match(text, int(records.starts[index]), int(records.ends[index]))
            ragged[index] = match is None or match.end() != records.ends[index]
        return np.asarray(ragged)

    def _note(
        self, bad: npt.NDArray[np.bool_], text: bytes, records: Records, first_line: int, what: str | None
    ) -> None:
        for count, index in enumerate(np.flatnonzero(bad).tolist()):
            record = text[records.starts[index] : records.ends[index]]
            column, value, reason = "", record.decode("utf-8", "replace"), records.broken.get(index, "")
            if what == "fields":
                found = len(fields(record, self.dialect)) if count < KEPT else 0
                reason = f"has {found} fields, the header has {len(self.header)}"
            if what == "control":
                parts = fields(record, self.dialect)
                place = next((i for i, part in enumerate(parts) if _first_control(part)), 0)
                column, value = self.header[place], parts[place]
                reason = f"holds the control character U+{ord(_first_control(value) or chr(0)):04X}"
            self.rejects.add(first_line + int(records.lines[index]), column, value, reason)


def fields(record: bytes, dialect: CsvDialect) -> list[str]:
    """The fields of one record, by the standard library's reader.

    Args:
        record: UTF-8, without its line end.
        dialect: How the file is written.
    """
    text = record.decode("utf-8", "replace")
    reader = csv.reader([text], delimiter=dialect.delimiter, quotechar=dialect.quote, strict=False)
    return next(iter(reader), [""])


def _holds_control(text: bytes, records: Records) -> npt.NDArray[np.bool_]:
    if len(text.translate(None, _CONTROLS)) == len(text):
        return np.zeros(len(records.starts), dtype=bool)
    where = np.flatnonzero(_IS_CONTROL[np.frombuffer(text, dtype=np.uint8)])
    return np.asarray(np.searchsorted(where, records.ends) > np.searchsorted(where, records.starts))


def _first_control(text: str) -> str | None:
    return next((letter for letter in text if letter.isascii() and ord(letter) in _CONTROLS), None)
