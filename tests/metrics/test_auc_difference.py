"""The paired interval of two AUCs: against the textbook's sums, and how often it holds the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.auc_difference import auc_difference


def textbook(ours, theirs, labels, level=0.95):
    """DeLong's covariance from all pairs, one by one."""
    positive, negative = np.flatnonzero(labels), np.flatnonzero(~labels)
    aucs, tens, ones = [], [], []
    for scores in (ours, theirs):
        pairs = np.array([[1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0 for j in negative]
                          for i in positive])  # fmt: skip
        aucs.append(pairs.mean())
        tens.append(pairs.mean(1))
        ones.append(pairs.mean(0))
    covariance = np.cov(tens) / len(positive) + np.cov(ones) / len(negative)
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    return aucs[0] - aucs[1], math.sqrt(variance)


def test_it_is_the_textbooks_with_ties():
    from scipy.stats import t

    rng = np.random.default_rng()
    labels = rng.random(300) < 0.3
    labels[:2] = [True, False]
    theirs = np.round(labels + rng.normal(size=300), 1)
    ours = np.round(theirs + rng.normal(0, 0.5, 300), 1).astype(np.float16)
    found = auc_difference(ours, theirs, labels)
    mean, error = textbook(ours, theirs, labels)
    assert found.mean == pytest.approx(mean, abs=1e-12)
    reach = t.ppf(0.975, 299) * error
    # the textbook divides by one less in each class, this one by one less in all
    assert found.high - found.mean == pytest.approx(reach, rel=0.02)
    assert found.high + found.low == pytest.approx(2 * mean, abs=1e-12)
    assert found.users == 300


def test_equal_scores_differ_by_nothing():
    labels = np.arange(50) % 3 == 0
    scores = np.random.default_rng().normal(size=50)
    found = auc_difference(scores, scores, labels)
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)
    assert not found.decided


@pytest.mark.parametrize("users", [60, 400])
def test_the_interval_holds_the_truth_as_often_as_it_says(users):
    from scipy.stats import norm

    rng, runs, held = np.random.default_rng(), 300, 0
    own, wide, narrow = 1.0, 1.0, 0.8  # deviations of a user's own level, of their noise and of ours
    truth = norm.cdf(1 / math.sqrt(2 * (own**2 + narrow**2))) - norm.cdf(1 / math.sqrt(2 * (own**2 + wide**2)))
    for _ in range(runs):
        group = np.repeat(np.arange(users), rng.integers(1, 12, users))
        labels = rng.random(len(group)) < 0.3
        level = rng.normal(0, own, users)[group]
        shared = rng.normal(size=len(group))
        ours, own_noise = labels + level + narrow * shared, rng.normal(size=len(group))
        theirs = labels + level + wide * (0.6 * shared + 0.8 * own_noise)
        found = auc_difference(ours, theirs, labels, groups=group)
        held += found.low <= truth <= found.high
    spread = math.sqrt(0.95 * 0.05 / runs)
    assert abs(held / runs - 0.95) < 5 * spread


def test_rows_of_few_users_are_not_taken_for_many():
    rng = np.random.default_rng()
    group = np.repeat(np.arange(40), 50)
    labels = rng.random(2000) < 0.5
    ours = labels + 3 * rng.normal(size=40)[group]
    theirs = labels + 3 * rng.normal(size=40)[group]
    alone, together = auc_difference(ours, theirs, labels), auc_difference(ours, theirs, labels, groups=group)
    assert together.users == 40
    assert alone.mean == together.mean


@pytest.mark.parametrize(
    ("ours", "labels", "groups", "error", "words"),
    [
        ([0.1, math.nan, 0.3], [0, 1, 1], None, DataError, "score nan of ours at row 1"),
        ([0.1, 0.2], [0, 1, 1], None, DataError, "have 2, 3 and 3 rows"),
        ([0.1, 0.2, 0.3], [1, 1, 1], None, DataError, "one class"),
        ([0.1, 0.2, 0.3], [0, 1, 1], [7, 7, 7], DataError, "one user"),
    ],
)
def test_what_cannot_be_compared_is_refused(ours, labels, groups, error, words):
    with pytest.raises(error, match=words):
        auc_difference(ours, [0.3, 0.2, 0.1], labels, groups=groups)


def test_a_level_outside_of_its_range_is_refused():
    with pytest.raises(ConfigurationError, match="`level`"):
        auc_difference([0.1, 0.2], [0.1, 0.2], [0, 1], level=1.0)
