"""Negatives: what may be drawn, how often, and that a draw depends on seed and row alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lightning_mp.data.negatives import Negatives
from lightning_mp.errors import ConfigurationError, DataError

DAY = 86_400_000_000


def log(rows=4000, items=40):
    generator = np.random.default_rng()
    popularity = 1 / np.arange(1, items + 1)
    item = generator.choice(items, rows, p=popularity / popularity.sum())
    time = generator.integers(0, 28 * DAY, rows)
    basket = generator.integers(0, rows // 3, rows)
    return np.arange(rows) * 7, item.astype(np.int64), time, basket


def test_negatives_were_available_and_not_taken():
    row, item, time, basket = log()
    places, drawn = Negatives(per_positive=4).draw(row, item, time, basket)
    week = (time - 4 * DAY) // (7 * DAY)
    there = {w: set(item[week == w].tolist()) for w in set(week.tolist())}
    taken = {b: set(item[basket == b].tolist()) for b in set(basket.tolist())}
    for place, negative in zip(places.tolist(), drawn.tolist(), strict=True):
        assert negative in there[week[place]]
        assert negative not in taken[basket[place]]
    counts = Counter(places.tolist())
    assert set(counts.values()) == {4}
    assert len({(p, d) for p, d in zip(places.tolist(), drawn.tolist(), strict=True)}) == len(places)


def test_uniform_draws_are_uniform_and_popular_ones_follow_the_log():
    generator = np.random.default_rng()
    rows, items = 30_000, 10
    item = generator.choice(items, rows, p=np.arange(1, items + 1) / 55)
    one_each = np.arange(rows)
    arguments = (one_each, item.astype(np.int64), np.full(rows, 5 * DAY), one_each)
    uniform = np.bincount(Negatives(per_positive=1).draw(*arguments)[1], minlength=items) / rows
    popular = np.bincount(Negatives(per_positive=1, weighting="popularity").draw(*arguments)[1], minlength=items) / rows
    p = np.bincount(item, minlength=items) / rows
    # The item of the positive itself is left out, so a draw has 1 / 9 for each other item.
    np.testing.assert_allclose(uniform, (1 - p) / (items - 1), atol=0.01)
    weighted = np.array([sum(p[k] * p[j] / (1 - p[k]) for k in range(items) if k != j) for j in range(items)])
    np.testing.assert_allclose(popular, weighted, atol=0.015)


def test_a_draw_depends_on_seed_and_row_alone():
    row, item, time, basket = log()
    order = np.random.default_rng().permutation(len(row))
    first = Negatives().draw(row, item, time, basket)
    moved = Negatives().draw(row[order], item[order], time[order], basket[order])
    by_row = {r: first[1][row[first[0]] == r].tolist() for r in row.tolist()}
    assert by_row == {r: moved[1][row[order][moved[0]] == r].tolist() for r in row.tolist()}
    assert not np.array_equal(Negatives(seed=1).draw(row, item, time, basket)[1], first[1])


def test_too_few_items_give_fewer_negatives_or_an_error():
    time = np.zeros(3, dtype=np.int64)
    places, drawn = Negatives().draw(np.arange(3), np.array([0, 1, 2]), time, np.array([0, 0, 1]))
    assert sorted(zip(places.tolist(), drawn.tolist(), strict=True)) == [(0, 2), (1, 2), (2, 0), (2, 1)]
    with pytest.raises(DataError, match="no negative can be drawn"):
        Negatives().draw(np.arange(2), np.array([0, 1]), time[:2], np.array([0, 0]))


@pytest.mark.parametrize("settings", [{"per_positive": 0}, {"available": "0d"}, {"available": "week"}])
def test_settings_that_cannot_work(settings):
    with pytest.raises(ConfigurationError):
        Negatives(**settings)
