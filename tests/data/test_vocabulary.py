"""Vocabularies against a plain dictionary and a plain count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.vocabulary import MISSING_INTEGER, Vocabulary
from lightning_mp.errors import DataError, LightningMPError

WORDS = st.text(max_size=4)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
COLUMNS = st.lists(st.none() | WORDS) | st.lists(st.none() | INTEGERS)


@given(COLUMNS, st.integers(1, 3), st.none() | st.integers(2, 5))
def test_fit_keeps_the_most_frequent_then_the_smallest(values, min_count, max_size):
    counts = Counter(v for v in values if v not in (None, "", MISSING_INTEGER))
    expected = [v for v, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if n >= min_count]
    if max_size is not None:
        expected = expected[: max_size - 1]
    vocabulary = Vocabulary.fit(values, min_count=min_count, max_size=max_size)
    assert vocabulary.entries.tolist() == expected
    assert vocabulary.size == len(expected) + 1


@given(COLUMNS)
def test_encode_and_decode_are_each_others_inverse(values):
    vocabulary = Vocabulary.fit(values)
    rows = vocabulary.encode(values)
    assert rows.dtype == np.int32
    known = [None if v in (None, "", MISSING_INTEGER) else v for v in values]
    assert vocabulary.decode(rows).tolist() == known
    assert (rows == 0).tolist() == [v is None for v in known]


@given(st.lists(WORDS.filter(bool), unique=True, min_size=2))
def test_digest_knows_order_and_type(words):
    assert Vocabulary(words).digest == Vocabulary(list(words)).digest
    assert Vocabulary(words).digest != Vocabulary(words[::-1]).digest
    assert Vocabulary(["1", "2"]).digest != Vocabulary([1, 2]).digest


def test_text_is_compared_exactly():
    vocabulary = Vocabulary(["7", "007", " 7", "\u00e9", "e\u0301"])
    assert vocabulary.encode(["7", "007", " 7", "\u00e9", "e\u0301", 7]).tolist() == [1, 2, 3, 4, 5, 0]


def test_a_value_of_another_type_is_unknown():
    assert Vocabulary([1, 2]).encode(["1", 2]).tolist() == [0, 2]


def test_numpy_columns_are_taken_as_they_are():
    assert Vocabulary.fit(np.array([5, 5, 9])).encode(np.array([9, 4])).tolist() == [2, 0]
    assert Vocabulary(Vocabulary(["b", "a"]).entries).entries.tolist() == ["b", "a"]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (["a", "a"], "'a' stands twice"),
        (["a", 1], "all of one type"),
        ([True], "all of one type"),
        ([1.5], "all of one type"),
        (["", "a"], "'' stands for a missing value"),
        ([MISSING_INTEGER], "stands for a missing value"),
        ([2**63], "must fit int64"),
    ],
)
def test_bad_entries_are_refused(entries, text):
    with pytest.raises(DataError, match=text):
        Vocabulary(entries)


def test_fit_refuses_mixed_types():
    with pytest.raises(LightningMPError, match="text and integers together"):
        Vocabulary.fit(["a", 1])


def test_decode_refuses_what_is_outside():
    with pytest.raises(DataError, match="row 3 is outside a vocabulary of 3 rows"):
        Vocabulary(["a", "b"]).decode([3])


def test_empty():
    empty = Vocabulary.fit([])
    assert (empty.size, empty.encode(["a"]).tolist(), len(empty)) == (1, [0], 1)
    assert "0 texts" in repr(empty)
    assert empty == Vocabulary([])
    assert hash(empty) == hash(Vocabulary([]))
