"""Cut CSV bytes into records by our own scan, so that line numbers are true and no row vanishes."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

LONGEST_RECORD: Final = 1 << 20
"""Bytes within which a quote must be closed; an open one would otherwise swallow the rest of the file."""


@dataclass(slots=True)
class Records:
    """Where the records of a piece of text lie; blank lines are not records.

    Attributes:
        starts: Offset of each record.
        ends: Offset behind each record, its line end left out.
        lines: Line each starts at, from 0 within the piece.
        quoted: Whether it holds a quote character.
        broken: Reason by record, for those whose quotes do not match.
        consumed: Bytes that were cut; the rest belongs to the next piece.
        line_count: Lines among them.
    """

    starts: Int64
    ends: Int64
    lines: Int64
    quoted: npt.NDArray[np.bool_]
    broken: dict[int, str] = field(default_factory=dict)
    consumed: int = 0
    line_count: int = 0


class RecordCutter:
    """Cuts text into records: at line ends (LF, CRLF or CR) that stand outside quotes.

    A quote opens only at the start of a field; elsewhere it is an ordinary character.

    Args:
        delimiter: One ASCII character.
        quote: One ASCII character.
    """

    def __init__(self, delimiter: str, quote: str) -> None:
        d, q = (re.escape(text).encode() for text in (delimiter, quote))
        self.quote = quote.encode()
        self.field = rb"(?>%b[^%b]*+(?:%b%b[^%b]*+)*+%b|[^%b%b\r\n][^%b\r\n]*+|)" % (q, q, q, q, q, q, q, d, d)
        self._delimiter = d
        self._record = self.record_of(None)
        # From a record's start to the end of the text, inside a quote that is still open.
        self._open = re.compile(rb"(?:%b%b)*+%b(?:[^%b]|%b%b)*+\Z" % (self.field, d, q, q, q, q))

    def record_of(self, fields: int | None) -> re.Pattern[bytes]:
        """Pattern of a whole record with that many fields; with any number of them for `None`."""
        times = b"*+" if fields is None else b"{%d}" % (fields - 1)
        return re.compile(rb"%b(?:%b%b)%b(?=[\r\n]|\Z)" % (self.field, self._delimiter, self.field, times))

    def cut(self, text: bytes, *, final: bool) -> Records:
        """Cut as many whole records as there are.

        Args:
            text: UTF-8, starting at a record; when `final`, ending with a line end.
            final: Whether nothing follows.
        """
        found = _lines(text, final=final)
        whole = len(found.starts)
        if self.quote in text:
            whole = self._join(text, found, final=final)
        is_record = ~found.continuation[:whole] & (found.ends[:whole] > found.starts[:whole])
        lines = np.flatnonzero(is_record)
        place = {int(line): index for index, line in enumerate(lines)} if found.broken else {}
        return Records(
            starts=found.starts[lines],
            ends=found.ends[lines],
            lines=lines,
            quoted=found.quoted[lines],
            broken={place[line]: reason for line, reason in found.broken.items()},
            consumed=int(found.line_ends[whole - 1]) + 1 if whole else 0,
            line_count=whole,
        )

    def _join(self, text: bytes, found: _Lines, *, final: bool) -> int:
        """Join lines that one record spans; returns how many lines are whole."""
        quotes = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == self.quote[0])
        holders = np.searchsorted(found.line_ends, quotes)
        holders = holders[(np.diff(holders, prepend=-1) > 0) & (holders < len(found.starts))]
        found.quoted[holders] = True
        starts, ends, free = found.starts.tolist(), found.ends.tolist(), 0
        for line in holders.tolist():
            if line < free:
                continue
            match = self._record.match(text, starts[line])
            if match is None:
                if not final and len(text) - starts[line] <= LONGEST_RECORD and self._open.match(text, starts[line]):
                    return int(line)
                found.broken[line] = "has a quote that is never closed, or text behind a closing quote"
            elif match.end() != ends[line]:
                last = bisect_left(ends, match.end())
                if last == len(ends):
                    return int(line)
                found.ends[line] = ends[last]
                found.continuation[line + 1 : last + 1] = True
                free = last + 1
        return len(starts)


@dataclass(slots=True)
class _Lines:
    starts: Int64
    ends: Int64
    line_ends: Int64
    quoted: npt.NDArray[np.bool_]
    continuation: npt.NDArray[np.bool_]
    broken: dict[int, str] = field(default_factory=dict)


def _lines(text: bytes, *, final: bool) -> _Lines:
    line_ends, ends = _line_ends(text, final=final)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), line_ends + 1])[:-1]
    none = np.zeros(len(starts), dtype=bool)
    return _Lines(starts, ends.copy(), line_ends, none, none.copy())


def _line_ends(text: bytes, *, final: bool) -> tuple[Int64, Int64]:
    """Offsets of the last byte of each line end, and of the end of each line's content."""
    data = np.frombuffer(text, dtype=np.uint8)
    line_ends = np.flatnonzero(data == 10)
    if b"\r" not in text:
        return line_ends, line_ends
    returns = np.flatnonzero(data == 13)
    behind = np.append(data, np.uint8(0 if final else 10))[returns + 1]  # a CR at the very end may be half a CRLF
    line_ends = np.sort(np.concatenate([line_ends, returns[behind != 10]]))
    crlf = (data[line_ends] == 10) & (line_ends > 0) & (data[line_ends - 1] == 13)
    return line_ends, line_ends - crlf
