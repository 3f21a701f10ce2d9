from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.baselines.history_scorer import HistoryScorer
from lightning_mp.errors import DataError

csr_array = pytest.importorskip("scipy.sparse").csr_array


def drawn():
    rng = np.random.default_rng()
    history = rng.poisson(0.3, size=(20, 12)) * 1.0
    history[3] = 0
    return rng, history


@pytest.mark.parametrize("sparse", [True, False])
def test_scores_are_history_times_weights_plus_offset(sparse):
    rng, history = drawn()
    weights, offset, otherwise = rng.normal(size=(12, 12)), rng.normal(size=12), rng.normal(size=12)
    scorer = HistoryScorer(
        history=csr_array(history),
        weights=csr_array(weights) if sparse else weights,
        offset=offset,
        otherwise=otherwise,
    )
    expected = history @ weights + offset
    expected[history.sum(1) == 0] = otherwise
    users = rng.integers(20, size=30)
    np.testing.assert_allclose(scorer(users), expected[users])
    items = rng.integers(12, size=(30, 5))
    np.testing.assert_allclose(scorer.of_candidates(users, items), expected[users[:, None], items])
    for max_bytes in (1, 8 * 12 * 3, 2**26):
        pairs = scorer.of_pairs(users, items[:, 0], max_bytes=max_bytes)
        np.testing.assert_allclose(pairs, expected[users, items[:, 0]])


def test_weights_may_be_over_some_items_alone():
    rng, history = drawn()
    part, weights = np.array([1, 4, 7]), rng.normal(size=(3, 3))
    scores = HistoryScorer(history=csr_array(history), weights=weights, part=part)(np.arange(20))
    np.testing.assert_allclose(scores[:, part], history[:, part] @ weights)
    assert (np.delete(scores, part, axis=1) == 0).all()


def test_without_weights_history_speaks_for_itself():
    _, history = drawn()
    assert (HistoryScorer(history=csr_array(history))(np.arange(20)) == history).all()


def test_unknown_codes_are_named():
    _, history = drawn()
    scorer = HistoryScorer(history=csr_array(history))
    with pytest.raises(DataError, match="user code 20 is outside 0 to 19"):
        scorer(np.array([3, 20]))
    with pytest.raises(DataError, match="item code -1 is outside 0 to 11"):
        scorer.of_pairs([0], [-1])
