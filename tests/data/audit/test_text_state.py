"""Columns of text against plain Python; any split gives the same."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.text_state import TextState

WORDS = st.one_of(
    st.none(),
    st.sampled_from(["", "1.5", "1,5", "7", "007", "-3e5", "x", "Ä", " 2 ", "1.2.3"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)


@given(texts=st.lists(WORDS, max_size=40), cut=st.integers(0, 40))
def test_counts_equal_plain_python_however_the_rows_are_split(texts, cut):
    one, other = TextState(label=True), TextState(label=True)
    label = np.array([hash(word) % 3 == 0 for word in texts], dtype=np.int8)
    for state, part in ((one, slice(0, cut)), (other, slice(cut, None))):
        state.update(pa.array(texts[part], type=pa.string()), label=label[part])
    one.merge(other)
    there = [word for word in texts if word is not None]
    number = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
    assert one.rows == len(texts)
    assert one.nulls == texts.count(None)
    assert one.empty == there.count("")
    assert one.numbers == sum(bool(number.fullmatch(word)) for word in there)
    assert one.commas == sum(bool(re.fullmatch(r"\s*[+-]?[0-9]+,[0-9]+\s*", word, re.ASCII)) for word in there)
    assert one.distinct.count == len(set(there))
    assert one.longest == max(map(len, there), default=0)


def test_the_rate_of_the_label_by_text_gives_the_auc_of_a_plain_ranking():
    rng = np.random.default_rng()
    kind = rng.integers(0, 5, 4000)
    label = rng.random(4000) < np.array([0.1, 0.2, 0.3, 0.4, 0.8])[kind]
    state = TextState(label=True)
    for part in np.array_split(np.arange(4000), 3):
        state.update(pa.array([f"k{k}" for k in kind[part]]), label=label[part].astype(np.int8))
    rate = np.array([label[kind == k].mean() for k in range(5)])[kind]
    above, below = rate[label][:, None], rate[~label][None, :]
    expected = (above > below).mean() + 0.5 * (above == below).mean()
    assert state.statistics().auc == pytest.approx(expected)


def test_few_rows_a_text_give_no_auc():
    state = TextState(label=True)
    state.update(pa.array([f"k{i}" for i in range(50)]), label=np.arange(50) % 2 == 0)
    assert state.statistics().auc is None
