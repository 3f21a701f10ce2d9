"""The score's formula, factor by factor, and that it falls where measured casts lose more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.score import column_score, rounding_factor, score_factors, table_score
from lightning_mp.data.audit.statistics import column_statistics


def statistics_of(values):
    state = NumberState()
    state.update(np.asarray(values, dtype=np.float64))
    return column_statistics(state)


def test_each_factor_equals_its_formula():
    rng = np.random.default_rng(0)
    tails = statistics_of(np.array([1e-3, 1.0, 1e5]))
    assert score_factors(tails, "fp16")["overflow"] == 0.0
    assert score_factors(tails, "bf16")["overflow"] == 1.0
    assert score_factors(tails, "bf16")["ratio"] == pytest.approx(1 - 0.1 * math.log10(1e8 / 1e4))
    tiny = statistics_of(np.concatenate([np.full(3, 1e-9), np.full(7, 0.5)]))
    assert score_factors(tiny, "fp16")["flush"] == pytest.approx(0.7)
    high = statistics_of(rng.uniform(1000, 4000, 1000))
    assert score_factors(high, "fp16")["headroom"] == pytest.approx(math.log2(65504 / high.maximum) / 6)
    assert score_factors(high, "bf16")["headroom"] == 1.0
    sparse = statistics_of(np.where(rng.random(1000) < 0.9, 0.0, rng.uniform(1, 2, 1000)))
    assert score_factors(sparse, "fp16")["zeros"] == pytest.approx(1 - 0.4 * (sparse.zero_share - 0.5))
    assert [rounding_factor(noise) for noise in (None, 2.0**-12, 2.0**-8, 2.0**-4.5, 0.5, 3.0)] == [1, 1, 1, 0.5, 0, 0]
    for s in (tails, tiny, high, sparse):
        for policy in ("fp16", "bf16"):
            assert column_score(s, policy) == pytest.approx(100 * math.prod(score_factors(s, policy).values()))


def test_a_table_is_as_good_as_its_columns_and_never_far_above_the_worst():
    assert table_score([80.0, 60.0]) == 70.0
    assert table_score([100.0] * 99 + [0.0]) == 50.0
    assert table_score([None]) is None


def test_the_score_falls_as_measured_casts_lose_more():
    """Columns ordered by what a real cast leaves of their variance are ordered alike by the score."""
    rng = np.random.default_rng(1)
    pairs = []
    for shift in 10.0 ** np.arange(0, 5):
        values = shift + rng.normal(size=4000)
        with np.errstate(over="ignore"):
            become = values.astype(np.float16).astype(np.float64)
        left = 0.0 if not np.isfinite(become).all() else np.corrcoef(values, become)[0, 1] if become.std() else 0.0
        s = statistics_of(values)
        pairs.append((left, score_factors(s, "fp16")["rounding"] * score_factors(s, "fp16")["overflow"]))
    scores = [score for _, score in sorted(pairs)]
    assert scores == sorted(scores)
    assert scores[0] < 0.1
    assert scores[-1] == 1.0
