from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.baselines.item_knn import item_knn
from lightning_mp.errors import ConfigurationError


def by_definition(history, neighbours, shrink, *, weights=None, count_itself=False):
    """Every pair of items looked at, in float64."""
    done = history > 0
    items = done.shape[1]
    similar = np.zeros((items, items))
    for i in range(items):
        row = np.zeros(items)
        for j in range(items):
            below = np.sqrt(done[:, i].sum() * done[:, j].sum()) + shrink
            if i != j and below > 0:
                row[j] = (done[:, i] & done[:, j]).sum() / below
        for j in sorted(range(items), key=lambda j: (-row[j], j))[:neighbours]:
            similar[j, i] = row[j]
        if count_itself:
            similar[i, i] = 1
    scores = (done if weights is None else weights) @ similar
    scores[~done.any(1)] = done.sum(0)
    return scores


@pytest.mark.parametrize("neighbours", [1, 4, 100])
@pytest.mark.parametrize("shrink", [0.0, 5.0])
@pytest.mark.parametrize("count_itself", [False, True])
def test_scores_are_sums_of_similarities_to_the_nearest(neighbours, shrink, count_itself):
    rng = np.random.default_rng()
    user, item = rng.integers(28, size=200), rng.integers(14, size=200)
    history = np.zeros((30, 15))
    np.add.at(history, (user, item), 1)
    settings = {"neighbours": neighbours, "shrink": shrink, "count_itself": count_itself}
    for max_bytes in (1, 2**27):
        scorer = item_knn(user, item, users=30, items=15, max_bytes=max_bytes, **settings)
        expected = by_definition(history, neighbours, shrink, count_itself=count_itself)
        np.testing.assert_allclose(scorer(np.arange(30)), expected, atol=1e-12)


def test_weights_are_of_the_score_and_not_of_the_similarity():
    rng = np.random.default_rng()
    user, item, weight = rng.integers(30, size=200), rng.integers(15, size=200), rng.uniform(0.1, 1, 200)
    weights = np.zeros((30, 15))
    np.add.at(weights, (user, item), weight)
    scorer = item_knn(user, item, users=30, items=15, weight=weight, neighbours=3, shrink=1.0)
    np.testing.assert_allclose(scorer(np.arange(30)), by_definition(weights, 3, 1.0, weights=weights), atol=1e-12)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigurationError, match="`neighbours` must be at least 1, got 0"):
        item_knn([0], [0], users=1, items=1, neighbours=0)
    with pytest.raises(ConfigurationError, match="`shrink` must be at least 0, got -1"):
        item_knn([0], [0], users=1, items=1, shrink=-1)
