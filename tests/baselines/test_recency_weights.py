from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.baselines.recency_weights import recency_weights
from lightning_mp.errors import ConfigurationError


def test_each_later_row_of_the_user_costs_one_factor():
    rng = np.random.default_rng()
    user, time = rng.integers(6, size=200), rng.integers(50, size=200)
    weights = recency_weights(user, time, per_step=0.7)
    for row in range(200):
        mine = user == user[row]
        later = (mine & (time > time[row])).sum() + (mine[row + 1 :] & (time[row + 1 :] == time[row])).sum()
        assert weights[row] == pytest.approx(0.7**later)


def test_a_half_life_halves():
    rng = np.random.default_rng()
    time = rng.integers(1_400_000_000_000_000, 1_500_000_000_000_000, size=100)
    day = 86_400_000_000
    weights = recency_weights(np.zeros(100, int), time, half_life=30 * day)
    np.testing.assert_allclose(weights, 0.5 ** ((time.max() - time) / (30 * day)))
    assert weights.max() == 1


def test_no_rows_have_no_weights():
    for settings in ({"half_life": 5}, {"per_step": 0.5}):
        assert recency_weights([], [], **settings).shape == (0,)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "weights need one of `half_life` and `per_step`"),
        ({"half_life": 1, "per_step": 0.5}, "weights need one of `half_life` and `per_step`"),
        ({"half_life": 0}, "`half_life` must be above 0 microseconds, got 0"),
        ({"per_step": 1.2}, r"`per_step` must be in \(0, 1\], got 1.2"),
        ({"per_step": float("nan")}, r"`per_step` must be in \(0, 1\], got nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, problem):
    with pytest.raises(ConfigurationError, match=problem):
        recency_weights([1], [2], **settings)
    with pytest.raises(ConfigurationError, match="there are 2 users and 1 times"):
        recency_weights([1, 2], [2], per_step=0.5)
