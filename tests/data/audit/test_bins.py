"""What is read off the histogram, against exact answers over all rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.bins import BINS, HIGH, LOW, ORDER, auc, magnitude_counts, quantiles, stability_index


def counted(values: np.ndarray) -> np.ndarray:
    return np.bincount(values.astype(np.float32).view(np.uint32) >> 16, minlength=BINS)


def test_bins_rise_and_hold_every_finite_float32():
    assert len(set(ORDER.tolist())) == len(ORDER) == 2 * 0x7F80
    assert (LOW < HIGH).all()
    assert (LOW[1:] >= HIGH[:-1]).all()
    rng = np.random.default_rng()
    values = rng.integers(0, 2**32, 10_000, dtype=np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    place = np.argsort(ORDER)[np.searchsorted(np.sort(ORDER), values.view(np.uint32) >> 16)]
    assert (LOW[place] <= values).all()
    assert (values <= HIGH[place]).all()


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_lie_within_a_bin_of_the_exact_ones(seed):
    rng = np.random.default_rng(seed)
    shares = [0.0, 0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999, 1.0]
    for values in (rng.normal(size=3000), rng.lognormal(0, 5, 3000), np.where(rng.random(3000) < 0.7, 0, 5.0)):
        single = values.astype(np.float32)
        found = quantiles(counted(single), shares, single.min(), single.max())
        exact = np.quantile(single, shares, method="inverted_cdf")
        np.testing.assert_allclose(found, exact, rtol=2.0**-7, atol=1e-30)


@given(
    marks=st.lists(st.tuples(st.booleans(), st.integers(-20, 20)), min_size=1, max_size=80),
)
def test_auc_equals_the_count_of_pairs(marks):
    above = [value for given_label, value in marks if given_label]
    below = [value for given_label, value in marks if not given_label]
    found = auc(counted(np.array(above, dtype=np.float32)), counted(np.array(below, dtype=np.float32)))
    if not above or not below:
        assert found is None
        return
    pairs = sum((a > b) + 0.5 * (a == b) for a in above for b in below)
    assert found == pytest.approx(pairs / (len(above) * len(below)), abs=1e-12)


def test_auc_of_a_continuous_column_is_within_a_hundred_thousandth():
    rng = np.random.default_rng()
    label = rng.random(100_000) < 0.05
    score = rng.normal(size=100_000).astype(np.float32) + label
    rank = np.argsort(np.argsort(score)) + 1.0
    positives = label.sum()
    exact = (rank[label].sum() - positives * (positives + 1) / 2) / (positives * (~label).sum())
    assert auc(counted(score[label]), counted(score[~label])) == pytest.approx(exact, abs=3e-5)


def test_stability_index_is_zero_for_the_same_and_that_of_the_formula_otherwise():
    rng = np.random.default_rng()
    same = counted(rng.normal(size=50_000))
    assert stability_index(same, same) == pytest.approx(0.0, abs=1e-12)
    first, last = counted(np.repeat([1.0, 2.0], [700, 300])), counted(np.repeat([1.0, 2.0], [300, 700]))
    expected = 2 * 0.4 * math.log(0.7 / 0.3)
    assert stability_index(first, last) == pytest.approx(expected, rel=0.01)
    assert stability_index(first, counted(np.array([]))) is None
    assert stability_index(same, counted(rng.normal(0.05, 1, 50_000))) < 0.02


def test_magnitudes_are_counted_by_power_of_two():
    values = np.array([1.0, 1.99, -2.0, 0.25, 0.0, -0.0, 65504.0], dtype=np.float32)
    assert magnitude_counts(counted(values)) == {-2: 1, 0: 2, 1: 1, 15: 1}
