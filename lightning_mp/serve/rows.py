"""Rows of named values, as `POST /score` carries them, to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_mp.manifest import RawInput
from lightning_mp.serve.columns import checked_column, shown, unknown_name
from lightning_mp.serve.request_error import RequestError


def columns_of_rows(inputs: Sequence[RawInput], rows: object) -> dict[str, list[Any]]:
    """Turn rows of named values into one checked column an input.

    Args:
        inputs: What the model takes. A row may leave out each that is not required: it then takes the missing
            value, for which the model holds the rule.
        rows: A list of objects, `{name: value}`.

    Returns:
        For every input one value a row.

    Raises:
        RequestError: It is not a list of objects, a name is unknown, or a value breaks the rules of its type.

    Example:
        >>> user, price = RawInput(name="user", datatype="BYTES"), RawInput(name="price", datatype="FP64")
        >>> columns_of_rows((user, price), [{"user": "u1", "price": 2}, {"user": "u2"}])
        {'user': ['u1', 'u2'], 'price': [2, nan]}
    """
    if not isinstance(rows, list | tuple):
        raise RequestError(f"`rows` is {shown(rows)}, not a list", 'send {"rows": [{"<name>": <value>, ...}, ...]}')
    names = {spec.name for spec in inputs}
    for index, row in enumerate(rows):
        if type(row) is not dict and not isinstance(row, Mapping):
            raise RequestError(
                f"`rows[{index}]` is {shown(row)}, not an object", 'send each row as {"<name>": <value>, ...}'
            )
        if not row.keys() <= names:
            unknown = next(name for name in row if name not in names)
            raise unknown_name(unknown, [spec.name for spec in inputs], place=f"rows[{index}]")
    return {spec.name: checked_column(spec, [row.get(spec.name) for row in rows], place="rows[{}]") for spec in inputs}
