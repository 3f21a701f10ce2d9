from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.item_mean import item_mean
from lightning_mp.errors import DataError

rows = st.lists(
    st.tuples(st.integers(-1, 4), st.integers(0, 5), st.integers(0, 6), st.sampled_from([0.0, 1.0, 0.25])),
    min_size=1,
    max_size=40,
)
priors = st.floats(0.1, 50)


def columns(log):
    user, item, time, label = zip(*log, strict=True)
    return list(user), list(item), list(time), list(label)


def slow_mean(keys, labels, key, prior):
    mine = [label for other, label in zip(keys, labels, strict=True) if other == key]
    return (sum(mine) + prior * np.mean(labels)) / (len(mine) + prior)


@given(rows, rows, priors)
@settings(deadline=None, max_examples=100)
def test_item_mean_is_the_smoothed_mean_of_the_item(train, test, prior):
    _, items, _, labels = columns(train)
    wanted = columns(test)[1]
    slow = [slow_mean(items, labels, item, prior) for item in wanted]
    assert item_mean(items, labels, wanted, prior=prior) == pytest.approx(slow, abs=1e-12)


def test_it_is_a_probability_and_needs_rows():
    score = item_mean([1, 1, 2], [1.0, 1.0, 0.0], [1, 2, 3, 1])
    assert ((score > 0) & (score < 1)).all()
    assert item_mean([1], [1.0], []).shape == (0,)
    with pytest.raises(DataError, match="no training rows"):
        item_mean([], [], [1])
