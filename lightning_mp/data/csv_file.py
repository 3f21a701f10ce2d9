"""CsvFile: the columns of a CSV file as text, in blocks, with the line every row stands at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from lightning_mp.data.block import Block
from lightning_mp.data.csv_bytes import CHUNK, utf8_chunks
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.csv_records import LONGEST_RECORD, RecordCutter, Records
from lightning_mp.data.csv_screen import CsvScreen, fields
from lightning_mp.data.rejects import Rejects
from lightning_mp.errors import DataError


@dataclass(slots=True)
class CsvFile:
    """A CSV file, read as text; what its fields mean is decided elsewhere.

    Args:
        path: A file that can be read.
        dialect: How it is written.
        rejects: Where records that are not rows are noted.
        chunk_bytes: Bytes read at a time.

    Attributes:
        header: Names of its columns.
        rows_seen: Data rows met by `blocks` so far, rejected ones counted.

    Raises:
        DataError: It holds no header, or bytes that its encoding does not have.
    """

    path: Path
    dialect: CsvDialect
    rejects: Rejects
    chunk_bytes: int = CHUNK
    header: tuple[str, ...] = ()
    rows_seen: int = 0
    _cutter: RecordCutter = field(init=False)

    def __post_init__(self) -> None:
        self._cutter = RecordCutter(self.dialect.delimiter, self.dialect.quote)
        head = b""
        for text in self._texts():
            head += text or b"\n"
            records = self._cutter.cut(head, final=text is None)
            if len(records.starts) or len(head) > LONGEST_RECORD:
                break
        if not len(records.starts) or 0 in records.broken:
            raise DataError(f"`{self.path}` holds no header that can be read", "its first line must name the columns")
        self.header = tuple(fields(head[records.starts[0] : records.ends[0]], self.dialect))

    @property
    def delimiter(self) -> str:
        """What its fields are cut at."""
        return self.dialect.delimiter

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """Read some columns.

        Args:
            names: Columns that stand in the header once.

        Yields:
            Text columns; an empty field is the empty text. Records that have not as many fields as the header, whose
            quotes do not match, or that hold a control character are noted in `rejects` and left out.
        """
        screen = CsvScreen(dialect=self.dialect, header=self.header, rejects=self.rejects)
        size, read, carry, line, in_header = self.path.stat().st_size, 0, b"", 1, True
        for text in self._texts():
            read += len(text or b"")
            piece = carry + (text or (b"" if carry.endswith((b"\n", b"\r")) else b"\n"))
            records = self._cutter.cut(piece, final=text is None)
            if in_header and len(records.starts):
                records, in_header = _without_first(records), False
            if len(records.starts):
                good = screen.good(piece, records, line)
                rows = self.rows_seen + np.flatnonzero(good)
                self.rows_seen += len(good)
                yield Block(
                    rows=rows,
                    lines=line + records.lines[good],
                    columns=self._columns(piece, records, good, names),
                    done=min(read / size, 1.0),
                )
            line += records.line_count
            carry = piece[records.consumed :]

    def _texts(self) -> Iterator[bytes | None]:
        yield from utf8_chunks(self.path, self.dialect.encoding, chunk_bytes=self.chunk_bytes)
        yield None

    def _columns(
        self, text: bytes, records: Records, good: npt.NDArray[np.bool_], names: Sequence[str]
    ) -> dict[str, pa.Array]:
        kept = _kept(text, records, good)
        places = {name: f"{self.header.index(name)}" for name in names}
        if not kept:
            return {name: pa.array([], type=pa.string()) for name in names}
        table = csv.read_csv(
            pa.py_buffer(kept),
            read_options=csv.ReadOptions(
                use_threads=False,
                block_size=len(kept) + 1,
                column_names=[str(index) for index in range(len(self.header))],
            ),
            parse_options=csv.ParseOptions(
                delimiter=self.dialect.delimiter,
                quote_char=self.dialect.quote,
                newlines_in_values=True,
            ),
            convert_options=csv.ConvertOptions(
                column_types={place: pa.string() for place in places.values()},
                include_columns=list(dict.fromkeys(places.values())),
                null_values=[],
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
        if table.num_rows != np.count_nonzero(good):
            problem = (
                f"`{self.path}`: {np.count_nonzero(good):,} records were cut and {table.num_rows:,} rows were read"
            )
            raise DataError(problem, "report this file: two readers disagree about it")
        return {name: table.column(place).combine_chunks() for name, place in places.items()}


def _kept(text: bytes, records: Records, good: npt.NDArray[np.bool_]) -> bytes:
    """The text of the good records, in runs, so that a bad one costs a cut and not a pass over all rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    runs = zip(records.starts[edges[::2]].tolist(), records.ends[edges[1::2] - 1].tolist(), strict=True)
    return b"\n".join([*(text[start:end] for start, end in runs), b""])


def _without_first(records: Records) -> Records:
    return replace(
        records,
        starts=records.starts[1:],
        ends=records.ends[1:],
        lines=records.lines[1:],
        quoted=records.quoted[1:],
        broken={index - 1: reason for index, reason in records.broken.items() if index},
    )
