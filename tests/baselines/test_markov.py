from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.baselines.markov import markov
from lightning_mp.errors import ConfigurationError


@pytest.mark.parametrize("prior", [0.0, 1.0, 30.0])
def test_scores_are_counted_transitions_from_the_last_item(prior):
    rng = np.random.default_rng()
    user, item, time = rng.integers(9, size=400), rng.integers(8, size=400), rng.integers(60, size=400)
    transitions, last = np.zeros((8, 8)), {}
    for row in sorted(range(400), key=lambda row: (time[row], row)):
        if user[row] in last:
            transitions[last[user[row]], item[row]] += 1
        last[user[row]] = item[row]
    counts = np.bincount(item, minlength=8)
    scores = markov(user, item, time, users=10, items=8, prior=prior)(np.arange(10))
    for code in range(9):
        np.testing.assert_allclose(scores[code], transitions[last[code]] + prior * counts / 400)
    np.testing.assert_allclose(scores[9], counts)  # no row: popularity


def test_no_rows_and_wrong_settings():
    assert (markov([], [], [], users=2, items=3)(np.array([1])) == 0).all()
    with pytest.raises(ConfigurationError, match="`prior` must be at least 0, got -1"):
        markov([0], [0], [0], users=1, items=1, prior=-1)
    with pytest.raises(ConfigurationError, match="there are 1 users and 2 times"):
        markov([0], [0], [0, 1], users=1, items=1)
