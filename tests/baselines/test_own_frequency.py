from __future__ import annotations

import numpy as np

from lightning_mp.baselines.own_frequency import own_frequency


def test_items_go_by_own_count_then_by_popularity():
    rng = np.random.default_rng()
    user, item = rng.integers(9, size=300), rng.integers(40, size=300)
    counts = np.bincount(item, minlength=40)
    scores = own_frequency(user, item, users=10, items=40)(np.arange(10))
    for code in range(9):
        own = np.bincount(item[user == code], minlength=40)
        expected = np.lexsort((counts, own))
        ranks = np.stack([own, counts])[:, expected]
        assert (ranks == np.stack([own, counts])[:, np.argsort(scores[code], kind="stable")]).all()
    np.testing.assert_allclose(scores[9], counts)


def test_rows_may_be_weighted():
    scores = own_frequency([0, 0, 0], [1, 1, 2], users=1, items=3, weight=[0.25, 0.25, 1.0])(np.array([0]))
    assert scores.argmax() == 2
