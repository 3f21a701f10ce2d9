from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.popularity import popularity
from lightning_mp.errors import ConfigurationError

codes = st.lists(st.integers(-1, 5), max_size=40)


@given(codes, codes)
@settings(deadline=None, max_examples=100)
def test_it_counts_training_rows(train, wanted):
    assert popularity(train, wanted).tolist() == [train.count(item) for item in wanted]


def test_a_window_counts_the_latest_rows_alone():
    rng = np.random.default_rng()
    item, time = rng.integers(20, size=500), rng.integers(1000, size=500)
    for window in (1, 100, 5000):
        latest = item[time > time.max() - window]
        expected = np.bincount(latest, minlength=25)
        assert (popularity(item, np.arange(25), train_time=time, window=window) == expected).all()
    assert (popularity([], [1], train_time=[], window=5) == 0).all()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"window": 5}, "a `window` needs the times of the training rows"),
        ({"window": 0, "train_time": [1, 2]}, "`window` must be above 0 microseconds, got 0"),
        ({"window": 5, "train_time": [1]}, "there are 2 items and 1 times"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        popularity([1, 2], [1], **options)
