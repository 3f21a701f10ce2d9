"""The bytes of a CSV file as valid UTF-8, whatever its encoding, or an error that names the line."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lightning_mp.errors import DataError

CHUNK: Final = 1 << 23
_MARKS: Final = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def utf8_chunks(path: Path, encoding: str, *, chunk_bytes: int = CHUNK) -> Iterator[bytes]:
    """Read a text file piece by piece.

    Args:
        path: A file that can be read.
        encoding: Python's name of its encoding.
        chunk_bytes: Bytes read at a time.

    Yields:
        UTF-8, without byte-order mark; characters are never cut in two.

    Raises:
        DataError: A byte does not belong to the encoding, or the file is plainly in another one.
    """
    codec = codecs.lookup(encoding)
    is_utf8 = codec.name in ("utf-8", "utf-8-sig")
    decoder = codecs.getincrementaldecoder("utf-8" if is_utf8 else codec.name)("strict")
    lines, first = 1, True
    with path.open("rb") as file:
        while True:
            chunk = file.read(chunk_bytes)
            if first and is_utf8:
                _refuse_utf16(path, chunk)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _undecodable(path, encoding, error, lines) from error
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            if text:
                yield text.encode("utf-8", "surrogatepass")
            if not chunk:
                return
            lines += text.count("\n") or text.count("\r")


def _refuse_utf16(path: Path, head: bytes) -> None:
    for mark, name in _MARKS:
        if head.startswith(mark):
            problem = f"`{path}` is not utf-8: line 1 starts with the byte-order mark of UTF-16"
            raise DataError(problem, f"declare it with `csv.encoding: {name}`")
    even, odd = head[:64:2], head[1:64:2]  # a header in UTF-16: every second byte is NUL, and no other
    for nuls, letters, name in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if len(head) >= 4 and not nuls.strip(b"\0") and 0 not in letters:
            problem = f"`{path}` is not utf-8: line 1 has a NUL in every second byte, as UTF-16 has"
            raise DataError(problem, f"declare it with `csv.encoding: {name}`")


def _undecodable(path: Path, encoding: str, error: UnicodeDecodeError, lines: int) -> DataError:
    # `error.object` starts with what the decoder kept from the chunk before, so lines are counted from there.
    before = error.object[: error.start]
    line = lines + (before.count(b"\n") or before.count(b"\r"))
    tail = before.replace(b"\r", b"\n").rpartition(b"\n")[2][-20:].decode("latin-1")
    other = "latin-1" if codecs.lookup(encoding).name.startswith("utf-8") else "utf-8"
    problem = (
        f"`{path}` is not {encoding}: line {line:,} holds the byte 0x{error.object[error.start]:02x} after `{tail}`"
    )
    return DataError(problem, f"declare its encoding, as in `csv.encoding: {other}`")
