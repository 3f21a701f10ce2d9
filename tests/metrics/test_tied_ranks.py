from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lightning_mp.metrics.tied_ranks import (
    chance_of_a_hit,
    expected_discount,
    expected_hits,
    expected_reciprocal_rank,
)

CASES = [
    (higher, equal, positives, k)
    for higher in (0, 1, 3)
    for equal in (1, 2, 4, 6)
    for positives in range(1, equal + 1)
    for k in (1, 2, 4, 20)
]


@pytest.mark.parametrize(("higher", "equal", "positives", "k"), CASES)
def test_each_is_the_mean_over_all_places_of_the_block(higher, equal, positives, k):
    places = [[higher + place for place in chosen] for chosen in itertools.combinations(range(1, equal + 1), positives)]
    one = [place for (place,) in ([higher + p] for p in range(1, equal + 1))]
    h, e, m = (np.array([number]) for number in (higher, equal, positives))
    assert expected_hits(h, e, k)[0] == pytest.approx(np.mean([place <= k for place in one]))
    discounts = [1 / math.log2(place + 1) if place <= k else 0 for place in one]
    assert expected_discount(h, e, k)[0] == pytest.approx(np.mean(discounts))
    assert expected_reciprocal_rank(h, e, m)[0] == pytest.approx(np.mean([1 / min(taken) for taken in places]))
    assert chance_of_a_hit(h, e, m, k)[0] == pytest.approx(np.mean([min(taken) <= k for taken in places]))


def test_blocks_of_a_hundred_thousand_keep_their_precision():
    higher, equal, positives, k = 5, 100_000, 700, 40
    missed = math.prod((equal - positives - i) / (equal - i) for i in range(k - higher))
    h, e, m = (np.array([number]) for number in (higher, equal, positives))
    assert chance_of_a_hit(h, e, m, k)[0] == pytest.approx(1 - missed, rel=1e-6)
    chance, mean = positives / equal, 0.0
    for place in range(1, equal - positives + 2):
        mean += chance / (higher + place)
        chance *= (equal - place - positives + 1) / (equal - place)
    assert expected_reciprocal_rank(h, e, m)[0] == pytest.approx(mean, rel=1e-6)


def test_nothing_in_gives_nothing_out():
    none = np.array([], dtype=np.int64)
    results = (
        expected_hits(none, none, 3),
        expected_discount(none, none, 3),
        expected_reciprocal_rank(none, none, none),
        chance_of_a_hit(none, none, none, 3),
    )
    assert all(result.shape == (0,) for result in results)
