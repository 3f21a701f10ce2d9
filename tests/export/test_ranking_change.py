from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.export.ranking_change import auc, ndcg, top_lists


def slow_auc(labels, scores):
    wins = [1.0 if p > n else 0.5 if p == n else 0.0 for p in scores[labels] for n in scores[~labels]]
    return sum(wins) / len(wins) if wins else None


@given(st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=1, max_size=40))
def test_auc_counts_pairs(rows):
    labels, scores = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    expected = slow_auc(labels, scores)
    found = auc(labels, scores)
    assert found is expected if expected is None else math.isclose(found, expected, abs_tol=1e-12)


def slow_ndcg(gains, scores, length, k=10):
    values = []
    for start in range(0, len(gains) - length + 1, length):
        part = list(zip(scores[start : start + length], gains[start : start + length], strict=True))
        ranked = [gain for _, gain in sorted(part, key=lambda pair: -pair[0])]
        best = sorted((gain for _, gain in part), reverse=True)
        if any(best):
            values.append(
                sum(g / math.log2(i + 2) for i, g in enumerate(ranked[:k]))
                / sum(g / math.log2(i + 2) for i, g in enumerate(best[:k]))
            )
    return (sum(values) / len(values), len(values)) if values else (None, 0)


@pytest.mark.parametrize("length", [5, 20])
def test_ndcg_is_the_textbook_s(length):
    rng = np.random.default_rng()
    gains, scores = rng.choice([0.0, 0.0, 0.1, 1.0], 307), rng.normal(size=307)
    found, lists = ndcg(gains, scores, length)
    expected, counted = slow_ndcg(gains, scores, length)
    assert lists == counted
    assert math.isclose(found, expected, rel_tol=1e-12)
    assert ndcg(np.zeros(100), scores[:100], length) == (None, 0)
    assert ndcg(gains[:3], scores[:3], length) == (None, 0)


def test_equal_lists_overlap_and_reversed_ones_do_not():
    rng = np.random.default_rng()
    logits = rng.permuted(np.tile(np.arange(50.0), (7, 1)), axis=1).reshape(-1)
    same = top_lists(logits, logits, 50)
    assert (same["lists"], same["length"], same["k"]) == (7, 50, 10)
    assert (same["overlap_mean"], same["overlap_min"], same["same_order"]) == (1.0, 1.0, 1.0)
    assert (same["ties_reference"], same["ties_exported"]) == (0.0, 0.0)
    assert top_lists(logits, -logits, 50)["overlap_mean"] == 0.0


def test_one_intruder_is_a_tenth():
    reference, exported = np.arange(20.0), np.arange(20.0)
    exported[0] = 100.0
    found = top_lists(reference, exported, 20)
    assert found["overlap_mean"] == pytest.approx(0.9)
    assert found["same_order"] == 0.0


def test_rows_that_the_reference_ties_at_the_border_may_change_places():
    reference = np.repeat(np.arange(10.0), 2)  # places 10 and 11 differ, 9 and 10 are tied
    exported = reference + np.tile([0.0, 1e-7], 10)
    assert top_lists(reference, exported, 20)["overlap_min"] == 1.0
    tied = top_lists(np.zeros(20), np.zeros(20), 20)
    assert (tied["ties_reference"], tied["overlap_min"]) == (1.0, 1.0)


def test_float16_logits_make_ties_that_are_counted():
    rng = np.random.default_rng()
    logits = rng.normal(-4, 0.1, 100 * 1000)
    found = top_lists(logits, logits.astype(np.float16), 1000)
    assert found["ties_reference"] == 0.0
    assert found["ties_exported"] > 0.1


def test_a_list_of_nan_is_no_overlap():
    assert top_lists(np.arange(20.0), np.full(20, np.nan), 20)["overlap_mean"] < 1.0


def test_lists_shorter_than_the_cut_are_taken_whole():
    found = top_lists(np.arange(6.0), np.arange(6.0)[::-1].copy(), 3)
    assert (found["k"], found["overlap_mean"], found["ties_exported"]) == (3, 1.0, 0.0)
