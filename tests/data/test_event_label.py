"""Labels of events and preferences against loops over all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.event_label import followed_by
from lightning_mp.data.preference import preference_scores

LOGS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.booleans()), max_size=25)


@given(LOGS, st.integers(0, 5))
def test_followed_by_equals_a_loop_over_all_pairs_of_rows(rows, within):
    pair, time, is_event = (np.array(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    found = followed_by(
        np.array(pair, dtype=np.int64), np.array(time, dtype=np.int64), np.array(is_event, dtype=bool), within
    )
    assert found.tolist() == [
        any(event and p == other and t <= at <= t + within for other, at, event in rows) for p, t, _ in rows
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([0.0, 0.1, 0.5, 2.0])), max_size=25))
def test_preference_equals_a_loop_over_pairs(rows):
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    places, scores = preference_scores(
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.int64),
        np.array(columns[2], dtype=float),
        2.0,
    )
    expected = {}
    for pair in {row[0] for row in rows}:
        own = [(time, place) for place, (p, time, _) in enumerate(rows) if p == pair]
        expected[min(own)[1]] = max(weight for p, _, weight in rows if p == pair) / 2.0
    assert places.tolist() == sorted(expected)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, [expected[place] for place in sorted(expected)], rtol=1e-6)
