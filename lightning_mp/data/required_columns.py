"""Refuse a file that lacks a column, with all the columns it has and the nearest of them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from lightning_mp.data.columns import Columns
from lightning_mp.data.printable import printable
from lightning_mp.data.right_delimiter import require_delimiter
from lightning_mp.errors import DataError


def require_columns(
    file: Path, header: Sequence[str], names: Sequence[str], columns: Columns, *, delimiter: str | None
) -> None:
    """Refuse a file that lacks one of `names`, or has it twice.

    Args:
        file: As the user named it.
        header: The file's columns.
        names: Columns that are needed.
        columns: Says which role a column was to have.
        delimiter: What a CSV file was cut at; `None` for other files.

    Raises:
        DataError: A column is missing or stands twice; or the delimiter is plainly another one.
    """
    there = ", ".join(f"`{printable(name)}`" for name in header)
    missing = [name for name in names if name not in header]
    if missing and delimiter is not None:
        require_delimiter(file, header, delimiter, "csv.delimiter: '{}'")
    if missing:
        roles = {name: f"columns.{role}" for role, name in columns.source_columns().items()}
        wanted = ", ".join(f"`{name}` ({roles.get(name, 'a feature or label')})" for name in missing)
        free = [name for name in header if name not in names] or list(header)
        near = max(free, key=lambda name: SequenceMatcher(None, missing[0].casefold(), name.casefold()).ratio())
        word = "column" if len(missing) == 1 else "columns"
        hint = f"the nearest to `{missing[0]}` is `{printable(near)}`"
        raise DataError(f"`{file}` has no {word} {wanted}; it has {there}", hint)
    twice = [name for name in names if header.count(name) > 1]
    if twice:
        problem = f"`{file}` has {header.count(twice[0])} columns called `{printable(twice[0])}`; it has {there}"
        raise DataError(problem, "give each its own name")
