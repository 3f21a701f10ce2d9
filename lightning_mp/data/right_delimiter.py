"""Refuse a CSV file that was plainly written with another delimiter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lightning_mp.data.printable import printable
from lightning_mp.errors import DataError

_OTHERS: Final = ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas"))


def require_delimiter(file: Path, header: Sequence[str], delimiter: str, setting: str) -> None:
    """Refuse a file of one column whose name holds another delimiter.

    Args:
        file: As the user named it.
        header: The file's columns.
        delimiter: What it was cut at.
        setting: Where the right one is declared, with `{}` in its place.

    Raises:
        DataError: The delimiter is plainly another one.
    """
    if len(header) != 1:
        return
    for other, word in _OTHERS:
        if other != delimiter and other in header[0]:
            typed = "\\t" if other == "\t" else other
            raise DataError(
                f"`{file}` has one column when cut at `{delimiter}`; its header holds {word}: {printable(header[0])}",
                f"declare the delimiter: `{setting.format(typed)}`",
            )
