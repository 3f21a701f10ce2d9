from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.smoothed_mean import smoothed_mean
from lightning_mp.errors import ConfigurationError, DataError

rows = st.lists(st.tuples(st.integers(-1, 5), st.sampled_from([0.0, 1.0, 0.25])), min_size=1, max_size=40)


@given(rows, st.lists(st.integers(-1, 5), max_size=10), st.floats(0.1, 50))
@settings(deadline=None, max_examples=100)
def test_prior_rows_of_the_mean_of_all_are_added(train, wanted, prior):
    keys, labels = zip(*train, strict=True)
    slow = []
    for key in wanted:
        mine = [label for other, label in train if other == key]
        slow.append((sum(mine) + prior * np.mean(labels)) / (len(mine) + prior))
    assert smoothed_mean(keys, labels, wanted, prior=prior) == pytest.approx(slow, abs=1e-12)


def test_no_training_rows_are_named():
    with pytest.raises(DataError, match="no training rows"):
        smoothed_mean([], [], [1], prior=1.0)


@pytest.mark.parametrize("prior", [0.0, -1.0, float("nan")])
def test_a_prior_that_cannot_be_is_named(prior):
    with pytest.raises(ConfigurationError, match=f"`prior` must be above 0, got {prior!r}"):
        smoothed_mean([1], [1], [1], prior=prior)


def test_columns_of_different_length_are_named():
    with pytest.raises(ConfigurationError, match="2 keys and 1 labels"):
        smoothed_mean([1, 2], [1.0], [1], prior=1.0)
