"""JsonLinesFile: the fields of a JSON lines file as text, in blocks; a list of objects becomes a row an object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lightning_mp.data.block import Block
from lightning_mp.data.csv_bytes import CHUNK, utf8_chunks
from lightning_mp.data.rejects import Rejects
from lightning_mp.errors import DataError

_LONGEST_LINE: Final = 1 << 26


@dataclass(slots=True)
class JsonLinesFile:
    """A file with one JSON object a line; fields of nested objects are called `outer.inner`.

    A line may hold one list of objects, such as the events of a session: each object is a row then, with the line's
    other fields beside it. A line whose list is empty gives no row.

    Args:
        path: A file that can be read.
        encoding: Python's name of its encoding.
        rejects: Where lines that are not rows are noted.
        chunk_bytes: Bytes read at a time.

    Attributes:
        header: Names of its fields, as its first chunk shows them.
        rows_seen: Rows met by `blocks` so far, rejected ones counted.

    Raises:
        DataError: Its start holds no object with fields.
    """

    path: Path
    encoding: str
    rejects: Rejects
    chunk_bytes: int = CHUNK
    header: tuple[str, ...] = ()
    rows_seen: int = 0

    def __post_init__(self) -> None:
        names: dict[str, Any] = {}
        for _, lines in self._lines():
            for line in lines:
                record = _parsed(line)
                if isinstance(record, dict):
                    _flatten(record, "", names, {})
                    for row in _rows(record):
                        names.update(row)
            if names:
                break
        if not names:
            raise DataError(f"`{self.path}` holds no JSON object with fields", "write one object a line")
        self.header = tuple(names)

    @property
    def delimiter(self) -> None:
        """None: it is not cut at a delimiter."""
        return

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """Read some fields.

        Args:
            names: Fields, nested ones as `outer.inner`.

        Yields:
            Text columns: numbers as they are written, `true` and `false`, nothing for null and for what is absent.
            Lines that are not an object, and rows whose field holds a list or an object, are noted and left out.
        """
        size, read, number = max(self.path.stat().st_size, 1), 0, 1
        for count, lines in self._lines():
            read += count
            found: list[dict[str, str]] = []
            rows: list[int] = []
            places: list[int] = []
            for line in lines:
                for row in self._good(line, number, names):
                    found.append(row)
                    rows.append(self.rows_seen)
                    places.append(number)
                    self.rows_seen += 1
                number += 1
            columns = {name: pa.array([row.get(name, "") for row in found], type=pa.string()) for name in names}
            yield Block(
                rows=np.array(rows, dtype=np.int64),
                lines=np.array(places, dtype=np.int64),
                columns=columns,
                done=min(read / size, 1.0),
            )

    def _good(self, line: str, number: int, names: Sequence[str]) -> Iterator[dict[str, str]]:
        if not line.strip():
            return
        record = _parsed(line)
        if not isinstance(record, dict):
            self._reject(number, "", line, record if isinstance(record, _Fault) else "is no JSON object")
            return
        for row in _rows(record):
            odd = next((name for name in names if not isinstance(row.get(name, ""), str)), None)
            if odd is None:
                yield row
            else:
                self._reject(number, odd, json.dumps(row[odd]), "is a list, a value is needed")

    def _reject(self, number: int, column: str, value: str, reason: str) -> None:
        self.rows_seen += 1
        self.rejects.add(number, column, value, reason)

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Bytes read and whole lines, chunk by chunk."""
        rest = b""
        for chunk in utf8_chunks(self.path, self.encoding, chunk_bytes=self.chunk_bytes):
            if not rest and chunk.lstrip()[:1] == b"[":
                raise DataError(f"`{self.path}` is one JSON list, not JSON lines", "write one object a line")
            if len(rest) > _LONGEST_LINE:
                raise DataError(
                    f"`{self.path}` has a line of over {_LONGEST_LINE >> 20} MiB", "write one object a line"
                )
            whole, _, rest_of_chunk = chunk.rpartition(b"\n")
            if not _:
                rest += chunk
                continue
            yield len(chunk), (rest + whole).decode("utf-8", "replace").split("\n")
            rest = rest_of_chunk
        if rest:
            yield len(rest), [rest.decode("utf-8", "replace")]


def _parsed(line: str) -> Any:
    """The object of a line, numbers as text; or why there is none."""
    try:
        return json.loads(line, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except json.JSONDecodeError as error:
        return _Fault(f"is not JSON: {error.msg[:1].lower()}{error.msg[1:]} at sign {error.pos + 1:,}")
    except RecursionError:
        return _Fault("is nested too deeply")


class _Fault(str):
    """Why a line is no JSON."""

    __slots__ = ()


class _Number(str):
    """A number as it was written, so that no digit is lost; told apart from text where a list is looked for."""

    __slots__ = ()


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    flat: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    _flatten(record, "", flat, lists)
    if not lists:
        return [flat]
    name, entries = next(iter(lists.items()))
    flat |= {other: lists[other] for other in list(lists)[1:]}
    rows = []
    for entry in entries:
        row: dict[str, Any] = dict(flat)
        _flatten(entry, f"{name}.", row, {})
        rows.append(row)
    return rows


def _flatten(record: dict[str, Any], prefix: str, flat: dict[str, Any], lists: dict[str, list[Any]]) -> None:
    for name, value in record.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            _flatten(value, f"{path}.", flat, lists)
        elif isinstance(value, list) and not prefix and all(isinstance(entry, dict) for entry in value):
            lists[path] = value
        elif isinstance(value, bool):
            flat[path] = "true" if value else "false"
        else:
            flat[path] = "" if value is None else value
