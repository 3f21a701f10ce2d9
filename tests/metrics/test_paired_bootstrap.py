from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.metrics.paired_bootstrap import paired_bootstrap

RUNS = 250


@pytest.mark.parametrize(
    ("shape", "weighted"), [("normal", False), ("normal", True), ("skewed", False), ("mostly_equal", False)]
)
def test_the_interval_holds_the_true_difference_as_often_as_it_says(shape, weighted):
    rng = np.random.default_rng()
    held = 0
    for run in range(RUNS):
        easy = rng.uniform(size=80)  # what makes a user easy for both
        if shape == "normal":
            gain = rng.normal(0.1, 0.3, 80)
        elif shape == "skewed":
            gain = rng.exponential(0.1, 80)
        else:
            gain = 1.0 * (rng.random(80) < 0.1)
        weights = rng.integers(1, 4, 80) if weighted else None
        found = paired_bootstrap(easy + gain, easy, weights=weights, samples=300, seed=run)
        assert found.low <= found.mean <= found.high
        held += found.low <= 0.1 <= found.high
    # 95 % promised; small skewed samples hold a little less. 4 standard errors of 250 runs below 92 %.
    assert held / RUNS > 0.92 - 4 * np.sqrt(0.92 * 0.08 / RUNS)
    assert held / RUNS < 0.995


def test_what_users_have_in_common_falls_out():
    rng = np.random.default_rng()
    easy = rng.uniform(size=300)
    found = paired_bootstrap(easy + 0.01, easy)
    assert (found.mean, found.low, found.high) == (pytest.approx(0.01),) * 3
    noisy = paired_bootstrap(easy + rng.normal(0.5, 0.1, 300), rng.permutation(easy))
    assert noisy.high - noisy.low > 0.01
    assert noisy.decided


def test_the_mean_is_weighted_and_the_sign_turns():
    rng = np.random.default_rng()
    ours, theirs, weights = rng.uniform(size=(3, 200))
    found = paired_bootstrap(ours, theirs, weights=weights, seed=3)
    assert found.mean == pytest.approx(np.average(ours - theirs, weights=weights))
    assert found.users == 200
    turned = paired_bootstrap(theirs, ours, weights=weights, seed=3)
    assert (turned.mean, turned.low, turned.high) == (
        pytest.approx(-found.mean),
        pytest.approx(-found.high, abs=2e-3),
        pytest.approx(-found.low, abs=2e-3),
    )
    assert paired_bootstrap(ours, theirs, weights=weights, seed=3) == found


def test_equal_models_are_not_decided():
    same = np.random.default_rng().uniform(size=50)
    found = paired_bootstrap(same, same)
    assert (found.mean, found.low, found.high, found.decided) == (0, 0, 0, False)


def test_a_wider_level_gives_a_wider_interval():
    ours, theirs = np.random.default_rng().uniform(size=(2, 100))
    widths = [(d := paired_bootstrap(ours, theirs, level=level)).high - d.low for level in (0.5, 0.9, 0.99)]
    assert widths == sorted(widths)


def test_what_cannot_be_compared_is_named():
    two = [0.1, 0.2]
    with pytest.raises(DataError, match=r"ours has shape \(2,\), theirs \(1,\)"):
        paired_bootstrap(two, [0.1])
    with pytest.raises(DataError, match="theirs is nan at user 1"):
        paired_bootstrap(two, [0.1, float("nan")])
    with pytest.raises(DataError, match="there are 1 users to compare on"):
        paired_bootstrap([0.1], [0.2])
    with pytest.raises(DataError, match="weights must be at least 0"):
        paired_bootstrap(two, two, weights=[1, -1])
    with pytest.raises(ConfigurationError, match="`level` must be between 0 and 1, got 95"):
        paired_bootstrap(two, two, level=95)
    with pytest.raises(ConfigurationError, match="`samples` must be at least 100, got 10"):
        paired_bootstrap(two, two, samples=10)
