"""Rules by which values of a request become one column of a graph's input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from math import isfinite, nan
from typing import Any, Final

import numpy as np

from lightning_mp.manifest import Datatype, RawInput
from lightning_mp.serve.request_error import RequestError

MISSING: Final[dict[Datatype, str | int | float]] = {"BYTES": "", "INT64": -(2**63), "FP64": nan}
"""What the graph reads as "not given", by type."""

_EXPECTED: Final[dict[Datatype, tuple[str, str]]] = {
    "BYTES": ("a text", "send a JSON string, also for an id made of digits"),
    "INT64": ("an integer from -2^63 + 1 to 2^63 - 1", "send a JSON number without a fraction and without quotes"),
    "FP64": ("a finite number", "send a JSON number, without quotes; leave it out or send null when it is missing"),
}
_LARGEST = 2**63 - 1


def checked_column(spec: RawInput, values: Sequence[object], *, place: str) -> list[Any]:
    """Check the values of one input and put the missing value of its type where one is null.

    No value is ever turned into another one to make it fit: a text is no number, `true` is no 1, `3.0` is no
    integer, NaN and infinity are no numbers (null says "missing"). An integer given for a number is taken as the
    nearest float64, as JSON readers do.

    Args:
        spec: The input.
        values: One a row, as JSON or Python holds them; NumPy scalars are taken as what they hold.
        place: How the sender knows the position of a value, with `{}` for the row: `"rows[{}]"`.

    Returns:
        `str`, `int` or `float` values, as many as given; of a list or a vector one list of them a row.

    Raises:
        RequestError: A value is of another type, out of range, or missing though the input is required.

    Example:
        >>> checked_column(RawInput(name="price", datatype="FP64"), [3, None, 4.5], place="rows[{}]")
        [3, nan, 4.5]
    """
    if spec.shape:
        return [_several(spec, value, place.format(row)) for row, value in enumerate(values)]
    types = set(map(type, values))
    if types <= _PLAIN[spec.datatype] and _in_range(spec, values):
        return list(values)
    column: list[Any] = []
    for row, given in enumerate(values):
        value = given.item() if isinstance(given, np.generic) else given
        if value is None and not spec.required:
            column.append(MISSING[spec.datatype])
        elif value is None or (spec.required and value == "" and spec.datatype == "BYTES"):
            raise RequestError(
                f"`{place.format(row)}`: `{spec.name}` is missing, and the model needs it", "send it with every row"
            )
        elif type(value) in _PLAIN[spec.datatype] and _in_range(spec, [value]):
            column.append(value)
        else:
            expected, hint = _EXPECTED[spec.datatype]
            problem = f"`{place.format(row)}`: `{spec.name}` is {shown(value)}, not {expected}"
            raise RequestError(problem, hint)
    return column


def _several(spec: RawInput, value: object, place: str) -> list[Any]:
    """The values of one row: a vector's, NaN where it is missing, or a list's without what is missing in it."""
    if value is None and spec.is_list:
        return []
    if value is None and not spec.required:
        return [MISSING[spec.datatype]] * spec.shape[0]
    given = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(given, list | tuple) or (not spec.is_list and len(given) != spec.shape[0]):
        wanted = "a list" if spec.is_list else f"a list of {spec.shape[0]} numbers"
        if value is None:
            raise RequestError(f"`{place}`: `{spec.name}` is missing, and the model needs it", "send it with every row")
        raise RequestError(f"`{place}`: `{spec.name}` is {shown(value)}, not {wanted}", f"send {wanted}")
    one = replace(spec, shape=(), required=spec.required and not spec.is_list)
    entries = checked_column(one, given, place=f"{place}.{spec.name}[{{}}]")
    return [entry for entry in entries if entry != MISSING[spec.datatype]] if spec.is_list else entries


_PLAIN: Final[dict[Datatype, set[type]]] = {"BYTES": {str}, "INT64": {int}, "FP64": {float, int}}


def _in_range(spec: RawInput, values: Sequence[Any]) -> bool:
    if spec.datatype == "BYTES":
        try:
            "".join(values).encode()  # a lone surrogate of a Python caller has no UTF-8 form
        except UnicodeEncodeError:
            return False
        return not (spec.required and "" in values)
    if spec.datatype == "INT64":
        return not values or max(map(abs, values)) <= _LARGEST
    try:
        return all(map(isfinite, values))
    except OverflowError:  # a Python integer that no float64 reaches
        return False


def missing_value(spec: RawInput) -> Any:
    """What one row of an input holds when nothing was given."""
    if spec.is_list:
        return []
    return [MISSING[spec.datatype]] * spec.shape[0] if spec.shape else MISSING[spec.datatype]


def unknown_name(name: object, known: Sequence[str], *, place: str) -> RequestError:
    """The error for a name that the model does not take, with the nearest one that it does."""
    near = get_close_matches(str(name), known, n=1)
    listed = ", ".join(f"`{entry}`" for entry in known[:20]) + (", ..." if len(known) > 20 else "")
    hint = f"did you mean `{near[0]}`?" if near else f"the model takes {listed}"
    return RequestError(f"`{place}`: {shown(name)} is not an input of this model", hint)


def shown(value: object) -> str:
    """A value as JSON, at most 80 characters, for an error's text."""
    try:
        text = json.dumps(value, allow_nan=True)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
