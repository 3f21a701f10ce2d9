"""Text to numbers and flags by strict rules, over all rows; what does not fit is marked, never changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.rejects import positions

Mask = npt.NDArray[np.bool_]
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"([+-]?\d+)(?:\.0*)?", re.ASCII)
_TRUE: Final = ("1", "true", "t", "yes", "y", "1.0")
_FALSE: Final = ("0", "false", "f", "no", "n", "0.0")


@dataclass(frozen=True, slots=True)
class Typed:
    """A column in its type.

    Attributes:
        values: (N,); null where the value is missing or wrong.
        wrong: Rows that hold something else, by reason.
    """

    values: pa.Array
    wrong: dict[str, Mask] = field(default_factory=dict)


def to_double(texts: pa.Array, decimal: str = ".") -> Typed:
    """Numbers: digits, a decimal mark, an exponent, white space round them; `NaN` is missing, infinity is wrong.

    Args:
        texts: (N,) text.
        decimal: `.` or `,`; the other one is not accepted, and there are no thousands separators.

    Example:
        >>> to_double(pa.array([" 12.5", "nan", "1e3", "abc"])).values.to_pylist()
        [12.5, None, 1000.0, None]
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    trimmed = pc.if_else(pc.equal(pc.utf8_lower(trimmed), "nan"), None, trimmed)
    wrong = np.zeros(len(texts), dtype=bool)
    if decimal == ",":
        wrong = positions(pc.match_substring(trimmed, "."))
        trimmed = pc.replace_substring(pc.if_else(pa.array(wrong), None, trimmed), ",", ".")
    numbers = _cast(trimmed, pa.float64(), _double)
    bad = positions(pc.and_(pc.is_valid(trimmed), pc.is_null(numbers)))
    infinite = positions(pc.is_inf(numbers))
    numbers = pc.if_else(pa.array(infinite), None, numbers)
    comma = bad & positions(pc.match_substring_regex(trimmed, r"^[+-]?\d+,\d+$"))
    reasons = {
        "is not a number (a decimal comma?)": comma,
        f"is not a number (the decimal mark is `{decimal}`)": wrong,
        "is not a number": bad & ~comma,
        "is not finite": infinite,
    }
    return Typed(numbers, {reason: mask for reason, mask in reasons.items() if mask.any()})


def to_int64(texts: pa.Array) -> Typed:
    """Integers without loss: digits and a sign, or the same with `.0` behind it.

    Args:
        texts: (N,) text.

    Example:
        >>> to_int64(pa.array(["007", "9007199254740993", "1.0", "1.5"])).values.to_pylist()
        [7, 9007199254740993, 1, None]
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    hexadecimal = positions(pc.match_substring(trimmed, "x", ignore_case=True))  # Arrow would read 0x10 as 16
    numbers = _cast(pc.if_else(pa.array(hexadecimal), None, trimmed), pa.int64(), _integer)
    bad = positions(pc.and_(pc.is_valid(trimmed), pc.is_null(numbers)))
    return Typed(numbers, {"is not an integer of 64 bits": bad} if bad.any() else {})


def to_bool(texts: pa.Array) -> Typed:
    """Flags: 1, true, t, yes, y against 0, false, f, no, n, in any case.

    Args:
        texts: (N,) text.
    """
    folded = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    true, false = (pc.is_in(folded, value_set=pa.array(words)) for words in (_TRUE, _FALSE))
    flags = pc.if_else(pc.or_(true, false), true, None)
    bad = positions(pc.and_(pc.is_valid(texts), pc.is_null(flags)))
    return Typed(flags, {"is not a flag (0 or 1, true or false)": bad} if bad.any() else {})


def _cast(texts: pa.Array, kind: pa.DataType, slow: Callable[[str], float | int | None]) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # Arrow names one bad value and gives up; ours marks each
        return pa.array([None if text is None else slow(text) for text in texts.to_pylist()], type=kind)


def _double(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) or text.lstrip("+-").lower() in ("inf", "infinity") else None


def _integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    number = int(match[1]) if match and len(match[1]) < 30 else None
    return number if number is not None and -(2**63) <= number < 2**63 else None
