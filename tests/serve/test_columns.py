"""Values become a column unchanged, or not at all."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.manifest import RawInput
from lightning_mp.serve.columns import MISSING, checked_column, shown
from lightning_mp.serve.request_error import RequestError

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.text(),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "L"])),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(), st.integers(), max_size=1),
    st.binary(),
    st.complex_numbers(),
    st.decimals(),
)


def allowed(datatype: str, required: bool, value: object) -> bool:
    """The rules in words, by hand."""
    if value is None:
        return not required
    if datatype == "BYTES":
        is_text = isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)
        return is_text and not (required and value == "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if datatype == "INT64":
        return isinstance(value, int) and -(2**63) < value < 2**63
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


@given(st.sampled_from(["BYTES", "INT64", "FP64"]), st.booleans(), st.lists(st.one_of(ANYTHING, ANYTHING), max_size=4))
def test_a_value_is_taken_unchanged_or_refused_by_the_rules(datatype, required, values):
    spec = RawInput(name="x", datatype=datatype, required=required)
    wrong = [index for index, value in enumerate(values) if not allowed(datatype, required, value)]
    if wrong:
        with pytest.raises(RequestError) as caught:
            checked_column(spec, values, place="rows[{}]")
        assert caught.value.problem.startswith(f"`rows[{wrong[0]}]`: `x` is ")
        caught.value.problem.encode()  # can be printed and sent
        return
    column = checked_column(spec, values, place="rows[{}]")
    for given_value, value in zip(values, column, strict=True):
        expected = MISSING[datatype] if given_value is None else given_value
        assert type(value) is type(expected)
        assert value == expected or (value != value and expected != expected)


@pytest.mark.parametrize("value", [np.float16(1.5), np.float64(2), np.int8(3), np.uint64(2**63)])
def test_numpy_numbers_are_numbers(value):
    spec = RawInput(name="x", datatype="FP64")
    assert checked_column(spec, [value], place="{}") == [value.item()]


@pytest.mark.parametrize("value", [np.bool_(True), np.datetime64(1, "s"), np.float32("nan"), np.float32("inf")])
def test_other_numpy_values_are_not(value):
    with pytest.raises(RequestError, match="not a finite number"):
        checked_column(RawInput(name="x", datatype="FP64"), [value], place="rows[{}]")


def test_what_is_shown_is_short_and_printable():
    assert len(shown("x" * 1000)) == 80
    assert shown("\x1b[31m\u202e") == json.dumps("\x1b[31m\u202e")
    assert shown({1, 2}) == "{1, 2}"
