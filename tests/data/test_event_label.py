"""Labels of events and preferences against loops over all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.event_label import followed_by
from lightning_mp.data.preference import preference_scores

KINDS = ["view", "click", "other"]
LOGS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.sampled_from(KINDS)), max_size=25)


def columns(rows, count):
    return [np.array([row[place] for row in rows]) for place in range(count)]


@given(LOGS, st.integers(0, 5), st.booleans())
def test_followed_by_equals_a_loop_over_all_pairs_of_rows(rows, within, last_touch):
    pair, time, kind = columns(rows, 3)
    found = followed_by(
        pair.astype(np.int64),
        time.astype(np.int64),
        kind == "click",
        within,
        is_row=kind == "view",
        last_touch=last_touch,
    )
    assert found.tolist() == [
        kind == "view"
        and any(
            event == "click"
            and p == other
            and t <= at <= t + within
            and not (last_touch and any(q == p and k == "view" and t < s <= at for q, s, k in rows))
            for other, at, event in rows
        )
        for p, t, kind in rows
    ]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([0.0, 0.1, 0.5, 2.0])), max_size=25),
    st.sampled_from([None, 1, 3]),
)
def test_preference_equals_a_loop_over_pairs(rows, half_life):
    pair, time, weight = columns(rows, 3)
    places, scores = preference_scores(
        pair.astype(np.int64), time.astype(np.int64), weight.astype(float), half_life_us=half_life
    )
    expected = {}
    for p in {row[0] for row in rows}:
        own = [(time, place) for place, (q, time, _) in enumerate(rows) if q == p]
        weights = [(t - min(own)[0], w) for q, t, w in rows if q == p]
        expected[min(own)[1]] = (
            max(w for _, w in weights)
            if half_life is None
            else sum(w * 2 ** (-since / half_life) for since, w in weights)
        )
    assert places.tolist() == sorted(expected)
    np.testing.assert_allclose(scores, [expected[place] for place in sorted(expected)], rtol=1e-12)
