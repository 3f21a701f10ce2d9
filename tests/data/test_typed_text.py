"""Text to numbers and flags against Python's own reading, value by value."""

from __future__ import annotations

import math
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.typed_text import to_bool, to_double, to_int64

TEXTS = (
    st.text(alphabet="0123456789+-.eE,_x nafi", max_size=12)
    | st.floats().map(str)
    | st.integers(-(2**70), 2**70).map(str)
    | st.sampled_from(
        ["NaN", "inf", "-Infinity", "1e400", "0x10", "1_000", "\uff11\uff12", "+5", ".5", "5.", "-0", "\u00a05"]
    )
)
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def wrong_rows(typed):
    return {row: reason for reason, mask in typed.wrong.items() for row in mask.nonzero()[0].tolist()}


@given(st.lists(st.none() | TEXTS))
def test_doubles(texts):
    typed = to_double(pa.array(texts, type=pa.string()))
    wrong = wrong_rows(typed)
    for row, (text, value) in enumerate(zip(texts, typed.values.to_pylist(), strict=True)):
        stripped = None if text is None else text.strip()
        if stripped is None or stripped.lower() == "nan":
            assert (value, row in wrong) == (None, False)
        elif NUMBER.fullmatch(stripped) and math.isfinite(float(stripped)):
            assert value == float(stripped)
            assert row not in wrong
        else:
            assert value is None
            assert row in wrong


@given(st.lists(st.none() | TEXTS))
def test_integers_lose_nothing(texts):
    typed = to_int64(pa.array(texts, type=pa.string()))
    wrong = wrong_rows(typed)
    for row, (text, value) in enumerate(zip(texts, typed.values.to_pylist(), strict=True)):
        match = None if text is None else re.fullmatch(r"[+-]?[0-9]+(\.0*)?", text.strip())
        if text is None:
            assert (value, row in wrong) == (None, False)
        elif match and -(2**63) <= Decimal(text.strip()) < 2**63:
            assert value == Decimal(text.strip())
            assert row not in wrong
        else:
            assert (value, wrong.get(row)) == (None, "is not an integer of 64 bits")


def test_decimal_comma():
    typed = to_double(pa.array(["19,90", "12.5", "1.234,5", "7", None]), decimal=",")
    assert typed.values.to_pylist() == [19.9, None, None, 7.0, None]
    assert wrong_rows(typed) == dict.fromkeys([1, 2], "is not a number (the decimal mark is `,`)")


def test_reasons():
    typed = to_double(pa.array(["12,5", "x", "1e999", "inf"]))
    assert wrong_rows(typed) == {
        0: "is not a number (a decimal comma?)",
        1: "is not a number",
        2: "is not finite",
        3: "is not finite",
    }


def test_flags():
    typed = to_bool(pa.array(["1", "TRUE", " yes", "0", "False", "n", "2", None, "1.0"]))
    assert typed.values.to_pylist() == [True, True, True, False, False, False, None, None, True]
    assert wrong_rows(typed) == {6: "is not a flag (0 or 1, true or false)"}


@pytest.mark.parametrize("convert", [to_double, to_int64, to_bool])
def test_no_rows(convert):
    assert len(convert(pa.array([], type=pa.string())).values) == 0
