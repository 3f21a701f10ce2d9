from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from lightning_mp.baselines.ease import ease
from lightning_mp.errors import ConfigurationError, DataError


def drawn(users=80, items=25, rows=900):
    rng = np.random.default_rng()
    user, item = rng.integers(users - 1, size=rows), rng.integers(items - 1, size=rows)
    history = np.zeros((users, items))
    history[user, item] = 1
    return user, item, history


@pytest.mark.parametrize("l2", [0.5, 20.0, 500.0])
def test_each_column_is_a_ridge_regression_without_the_item_itself(l2):
    user, item, history = drawn()
    expected = np.zeros((25, 25))
    for i in range(24):  # the textbook solution, a column at a time; the last item was never taken
        rest = np.delete(history, i, axis=1)
        solved = np.linalg.solve(rest.T @ rest + l2 * np.eye(24), rest.T @ history[:, i])
        expected[np.arange(25) != i, i] = solved
    scores = ease(user, item, users=80, items=25, l2=l2)(np.arange(80))
    np.testing.assert_allclose(scores[:79], (history @ expected)[:79], atol=1e-10)
    np.testing.assert_allclose(scores[79], history.sum(0))  # no history: popularity


def test_many_items_are_solved_block_by_block():
    user, item, history = drawn(400, 1300, 9000)
    scorer = ease(user, item, users=400, items=1300, l2=10.0)
    taken = history.sum(0) > 0
    part = history[:, taken]
    inverse = np.linalg.inv(part.T @ part + 10 * np.eye(taken.sum()))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    np.testing.assert_allclose(scorer.weights, weights, atol=1e-12)
    assert (scorer.part == np.flatnonzero(taken)).all()


def test_only_the_most_popular_items_take_part_where_they_are_too_many():
    user, item, history = drawn()
    scorer = ease(user, item, users=80, items=25, max_items=8)
    counts = history.sum(0)
    assert len(scorer.part) == 8
    assert counts[scorer.part].min() >= np.delete(counts, scorer.part).max()
    assert (np.delete(scorer(np.arange(79)), scorer.part, axis=1) == 0).all()


def test_memory_is_one_square_matrix():
    user, item, _ = drawn(2000, 1500, 20_000)
    tracemalloc.start()
    ease(user, item, users=2000, items=1500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.9 * 8 * 1500**2


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ConfigurationError, match="`l2` must be above 0, got 0"):
        ease([0], [0], users=1, items=1, l2=0)
    with pytest.raises(ConfigurationError, match="`max_items` must be at least 1, got 0"):
        ease([0], [0], users=1, items=1, max_items=0)
    with pytest.raises(DataError, match="there are no training rows"):
        ease([], [], users=1, items=1)
