from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.user_item_mean import user_item_mean

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
def test_user_item_mean_adds_both_and_takes_the_mean_of_all_off(train, test, prior):
    users, items, _, labels = columns(train)
    slow = [
        slow_mean(users, labels, user, prior) + slow_mean(items, labels, item, prior) - np.mean(labels)
        for user, item, _, _ in test
    ]
    fast = user_item_mean(users, items, labels, *columns(test)[:2], prior=prior)
    assert fast == pytest.approx(slow, abs=1e-12)
