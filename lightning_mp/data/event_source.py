"""Open what rows are read from, whatever kind of file it is."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from lightning_mp.artifacts import digest
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.csv_file import CsvFile
from lightning_mp.data.input_file import file_kind
from lightning_mp.data.json_lines_file import JsonLinesFile
from lightning_mp.data.parquet_file import ParquetFile
from lightning_mp.data.rejects import Rejects
from lightning_mp.errors import DataError

RowFile: TypeAlias = CsvFile | ParquetFile | JsonLinesFile
Paths: TypeAlias = str | Path | Sequence[str | Path]


def source_files(path: Paths) -> list[Path]:
    """The files that a user means: one, a list of them, or a pattern such as `logs/2019-*.csv`, in its order by name.

    Raises:
        DataError: A pattern fits no file, a file is named twice, or one cannot be read.
    """
    named = [path] if isinstance(path, str | Path) else list(path)
    files: list[Path] = []
    for name in named:
        if isinstance(name, str) and glob.has_magic(name) and not Path(name).exists():
            found = sorted(glob.glob(name))  # noqa: PTH207  the pattern may be absolute
            if not found:
                raise DataError(f"no file fits `{name}`", "check the pattern: `ls` shows what is there")
            files += [Path(entry) for entry in found]
        else:
            files.append(Path(name))
    twice = [file for file in files if files.count(file) > 1]
    if not files or twice:
        problem = f"`{twice[0]}` is named twice" if twice else "there is no file to read"
        raise DataError(problem, "name each file once")
    for file in files:
        file_kind(file)
    return files


def open_source(file: Path, dialect: CsvDialect, rejects: Rejects) -> RowFile:
    """Open one file for reading in blocks.

    Args:
        file: Its first bytes and its name tell the kind.
        dialect: How a CSV file is written; its encoding holds for JSON lines too.
        rejects: Where records that are not rows are noted.
    """
    kind = file_kind(file)
    if kind == "parquet":
        return ParquetFile(file)
    return JsonLinesFile(file, dialect.encoding, rejects) if kind == "json lines" else CsvFile(file, dialect, rejects)


def source_digest(files: Sequence[Path]) -> str:
    """sha256 of one file, or over the digests of several, in their order."""
    digests = [digest(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
