from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.sampled_ranking import sampled_ranking


def drawn(users=50, negatives=20, levels=None):
    rng = np.random.default_rng()
    table = rng.normal(size=(users, 100)) if levels is None else rng.integers(levels, size=(users, 100)) * 1.0
    items = np.stack([rng.permutation(100)[: negatives + 1] for _ in range(users)])
    return table, items[:, 0], items[:, 1:]


def scorer(table):
    return lambda users, items: table[users[:, None], items]


@pytest.mark.parametrize("k", [1, 5, 10])
def test_one_positive_is_ranked_among_its_negatives(k):
    table, positive, negatives = drawn()
    users = np.arange(50)
    result = sampled_ranking(scorer(table), users=users, positive=positive, negatives=negatives, k=k)
    place = 1 + (table[users[:, None], negatives] > table[users, positive][:, None]).sum(1)
    assert result.hit_rate.tolist() == (place <= k).tolist()
    assert (result.recall == result.hit_rate).all()
    np.testing.assert_allclose(result.mrr, 1 / place)
    np.testing.assert_allclose(result.ndcg, np.where(place <= k, 1 / np.log2(place + 1), 0))
    np.testing.assert_allclose(result.precision, (place <= k) / k)


def test_a_constant_score_earns_what_chance_does():
    table, positive, negatives = drawn(levels=1)
    result = sampled_ranking(scorer(table), users=np.arange(50), positive=positive, negatives=negatives, k=7)
    np.testing.assert_allclose(result.hit_rate, 7 / 21)
    np.testing.assert_allclose(result.mrr, np.mean(1 / np.arange(1, 22)))


def test_a_user_may_stand_twice_and_chunks_do_not_matter():
    table, positive, negatives = drawn(levels=5)
    users = np.arange(50) % 7
    results = [
        sampled_ranking(scorer(table), users=users, positive=positive, negatives=negatives, max_bytes=size)
        for size in (1, 32 * 21 * 4, 2**27)
    ]
    assert results[0].users.tolist() == users.tolist()
    for name in ("ndcg", "recall", "precision", "hit_rate", "mrr"):
        assert all((getattr(other, name) == getattr(results[0], name)).all() for other in results)


def test_what_cannot_be_ranked_is_named():
    table, positive, negatives = drawn()
    users = np.arange(50)
    mixed = negatives.copy()
    mixed[4, 2] = positive[4]
    with pytest.raises(DataError, match=rf"item {positive[4]} of user 4 is among its own negatives \(1 such users\)"):
        sampled_ranking(scorer(table), users=users, positive=positive, negatives=mixed)
    with pytest.raises(DataError, match=r"positives \(49,\) and negatives \(50, 20\)"):
        sampled_ranking(scorer(table), users=users, positive=positive[1:], negatives=negatives)
    with pytest.raises(DataError, match="give at least one user"):
        sampled_ranking(scorer(table), users=[], positive=[], negatives=np.zeros((0, 5)))
    with pytest.raises(DataError, match=r"`score` gave shape \(50, 21\), 1,050 not finite"):
        sampled_ranking(scorer(table * np.nan), users=users, positive=positive, negatives=negatives)
    with pytest.raises(ConfigurationError, match="`k` must be at least 1, got 0"):
        sampled_ranking(scorer(table), users=users, positive=positive, negatives=negatives, k=0)
