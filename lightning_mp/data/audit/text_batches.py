"""The columns of a CSV or JSON lines file as an audit reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.csv_file import CsvFile
from lightning_mp.data.input_file import file_kind
from lightning_mp.data.json_lines_file import JsonLinesFile
from lightning_mp.data.rejects import Rejects
from lightning_mp.data.right_delimiter import require_delimiter

Read = Callable[[Sequence[int]], Iterator[tuple[list[pa.Array], int, str]]]


def text_source_parts(path: Path, dialect: CsvDialect, batch_rows: int, notes: list[str]) -> tuple[list[str], Read]:
    """Columns of a file of text, and a function that reads batches of them.

    Args:
        path: Its name tells the kind. Fields of nested objects are called `outer.inner`.
        dialect: How a CSV file is written; its encoding holds for JSON lines too.
        batch_rows: Rows a batch at most.
        notes: Where it is told how many lines were no rows.

    Raises:
        DataError: It cannot be read, or is not cut at this delimiter.
    """
    lines = file_kind(path) == "json lines"

    def opened(rejects: Rejects) -> CsvFile | JsonLinesFile:
        return JsonLinesFile(path, dialect.encoding, rejects) if lines else CsvFile(path, dialect, rejects)

    header = list(dict.fromkeys(opened(Rejects()).header))
    if not lines:
        require_delimiter(path, header, dialect.delimiter, "--delimiter '{}'")

    def read(places: Sequence[int]) -> Iterator[tuple[list[pa.Array], int, str]]:
        noted = Rejects()
        file = opened(noted)
        names = [header[place] for place in places]
        for block in file.blocks(names):
            rows = len(block.rows)
            for start in range(0, rows, batch_rows):
                pieces = [block.columns[name].slice(start, batch_rows) for name in names]
                yield pieces, min(batch_rows, rows - start), ""
        if noted.total and not notes:
            reasons = "; ".join(f"{count:,} {reason}" for (_, reason), count in noted.reasons.most_common(3))
            notes.append(f"{noted.total:,} of {file.rows_seen:,} rows were rejected: {reasons}")

    return header, read
