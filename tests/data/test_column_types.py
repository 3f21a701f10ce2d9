"""A file's types to ours: without loss, or marked."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data.column_types import to_type
from lightning_mp.errors import DataError


def reasons(typed):
    return {row: reason for reason, mask in typed.wrong.items() for row in mask.nonzero()[0].tolist()}


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pa.array(["007", None]), "auto", ["007", None]),
        (pa.array(["007"], pa.large_string()), "auto", ["007"]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), "auto", ["b", "a", "b"]),
        (pa.array([7, None], pa.int8()), "auto", [7, None]),
        (pa.array([7, None], pa.uint32()), "auto", [7, None]),
        (pa.array([True, None]), "auto", [1, None]),
        (pa.array([1.0, None, np.nan]), "auto", [1, None, None]),
        (pa.array([1.0, 2.0], pa.float16()), "int64", [1, 2]),
        (pa.array([7]), "string", ["7"]),
        (pa.array([7.0]), "string", ["7"]),
        (pa.array([1, 2], pa.int32()), "double", [1.0, 2.0]),
        (pa.array([True, False]), "double", [1.0, 0.0]),
        (pa.array([2**53 + 2, -(2**63), None]), "double", [2.0**53 + 2, -(2.0**63), None]),
        (pa.array([0.5, np.nan], pa.float32()), "double", [0.5, None]),
        (pa.array([0.5], pa.float16()), "double", [0.5]),
        (pa.array([Decimal("1.25")]), "double", [1.25]),
        (pa.array([" 1.5 "]), "double", [1.5]),
        (pa.array(["007"]), "int64", [7]),
        (pa.array([0, 1, None]), "bool", [False, True, None]),
        (pa.array([0.0, 1.0, np.nan]), "bool", [False, True, None]),
        (pa.array([True]), "bool", [True]),
        (pa.array(["yes"]), "bool", [True]),
        (pa.nulls(2), "auto", [None, None]),
        (pa.nulls(2), "double", [None, None]),
        (pa.nulls(2), "bool", [None, None]),
    ],
)
def test_without_loss(values, kind, expected):
    typed = to_type(values, kind, column="c")
    assert typed.values.to_pylist() == expected
    assert not typed.wrong


@pytest.mark.parametrize(
    ("values", "kind", "expected", "reason"),
    [
        (pa.array([1.0, 2.5]), "auto", [1, None], "is not a whole number"),
        (pa.array([1.0, np.inf]), "int64", [1, None], "is not finite"),
        (pa.array([5.0, 16777216.0], pa.float32()), "auto", [5, None], "may have lost its last digits in float32"),
        (pa.array([5.0, 2048.0], pa.float16()), "auto", [5, None], "may have lost its last digits in float16"),
        (pa.array([5, 2**63], pa.uint64()), "auto", [5, None], "is not an integer of 64 bits"),
        (pa.array([5, 2**53 + 1]), "double", [5.0, None], "has more digits than a float64 keeps"),
        (pa.array([5, -(2**53) - 1]), "double", [5.0, None], "has more digits than a float64 keeps"),
        (pa.array([5, 2**64 - 1], pa.uint64()), "double", [5.0, None], "has more digits than a float64 keeps"),
        (pa.array([0.5, -np.inf]), "double", [0.5, None], "is not finite"),
        (pa.array([5, 2**53 + 1], pa.uint64()), "double", [5.0, None], "has more digits than a float64 keeps"),
        (pa.array([1, 2]), "bool", [True, None], "is not a flag (0 or 1, true or false)"),
    ],
)
def test_what_would_be_lost_is_marked(values, kind, expected, reason):
    typed = to_type(values, kind, column="c")
    assert typed.values.to_pylist() == expected
    assert reasons(typed) == {1: reason}


@pytest.mark.parametrize("kind", ["auto", "double", "string", "bool"])
@pytest.mark.parametrize("values", [pa.array([date(2026, 3, 1)]), pa.array([[1, 2]]), pa.array([{"a": 1}])])
def test_types_that_hold_no_such_values(values, kind):
    with pytest.raises(DataError, match="column `c` holds"):
        to_type(values, kind, column="c")


def test_every_float16_integer_that_is_told_apart_is_kept():
    numbers = np.arange(-2047, 2048)
    typed = to_type(pa.array(numbers.astype(np.float16)), "int64", column="c")
    assert typed.values.to_pylist() == numbers.tolist()
