"""What kind of file an event log is, and whether it can be read at all."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from lightning_mp.errors import DataError

FileKind = Literal["csv", "parquet", "json lines"]
_SUFFIXES: Final[dict[str, FileKind]] = {
    ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".inter": "csv", ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "json lines", ".ndjson": "json lines",
}  # fmt: skip
_MAGIC: Final = {
    b"\x1f\x8b": ("gzip", "unpack it first: `gunzip`"),
    b"PK\x03\x04": ("zip", "unpack it first: `unzip`"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unpack it first: `unzstd`"),
    b"ARROW1": ("Arrow IPC", "write it as Parquet"),
}
_HINT: Final = "give a CSV file (.csv, .tsv, .txt), a Parquet file (.parquet, .pq), or JSON lines (.jsonl, .ndjson)"


def file_kind(path: str | Path) -> FileKind:
    """How to read a file, from its first bytes and its name.

    Args:
        path: As the user gave it.

    Returns:
        `"csv"`, `"parquet"` or `"json lines"`.

    Raises:
        DataError: It is missing, a folder, empty, not readable, or of another kind.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if file.is_dir():
            raise DataError(f"`{file}` is a folder, a file was to be read", _inside(file))
        if not file.is_file():
            raise DataError(f"`{file}` is a pipe or a device, not a file", "write what it gives to a file first")
        with file.open("rb") as stream:
            head = stream.read(8)
    except FileNotFoundError as error:
        raise DataError(f"`{file}` does not exist", _nearest(file)) from error
    except NotADirectoryError as error:
        raise DataError(f"`{file}` does not exist: a part of the path is a file", "check the path") from error
    except PermissionError as error:
        problem = f"`{file}` may not be read: no permission"
        raise DataError(problem, "change its owner or mode: `ls -l` shows them") from error
    except OSError as error:
        raise DataError(f"`{file}` cannot be read: {error.strerror or error}", "check the disk and the path") from error
    if size == 0:
        raise DataError(f"`{file}` is empty: 0 bytes", "check what was to write it")
    return _kind(file, head)


def _kind(file: Path, head: bytes) -> FileKind:
    if head.startswith(b"PAR1"):
        return "parquet"
    for magic, (name, hint) in _MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"`{file}` is a {name} file, which is not read here", hint)
    kind = _SUFFIXES.get(file.suffix.casefold())
    if kind is None:
        raise DataError(f"`{file}`: files ending in `{file.suffix}` are not read here", _HINT)
    if kind == "parquet":
        raise DataError(f"`{file}` is not a Parquet file: it starts with {head[:4]!r}, not with b'PAR1'", _HINT)
    return kind


def _nearest(file: Path) -> str:
    if not file.parent.is_dir():
        return f"check the path: there is no folder `{file.parent}`"
    try:
        names = os.listdir(file.parent)  # noqa: PTH208  names are compared, not opened
    except OSError:
        return "check the path"
    if file.is_symlink():
        return f"it is a link to `{file.readlink()}`, which is not there"
    near = get_close_matches(file.name, names, 1)
    return f"did you mean `{file.parent / near[0]}`?" if near else "check the path"


def _inside(folder: Path) -> str:
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.suffix.casefold() in _SUFFIXES)
    except OSError:
        files = []
    shown = ", ".join(f"`{entry}`" for entry in files[:5])
    return f"give one of its files: {shown}" if files else _HINT
