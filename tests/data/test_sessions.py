"""Sessions and dwell against a loop over rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.sessions import sessions

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=30)


@given(ROWS, st.integers(1, 12))
def test_sessions_equal_a_loop_over_rows(rows, gap):
    found = sessions(
        np.array([user for user, _ in rows], dtype=np.int64),
        np.array([time * 1_000_000 for _, time in rows], dtype=np.int64),
        gap * 1_000_000,
    )
    for (user, time), session, dwell in zip(rows, found.session.tolist(), found.dwell.tolist(), strict=True):
        same = [t for (u, t), s in zip(rows, found.session.tolist(), strict=True) if s == session]
        assert {u for (u, _), s in zip(rows, found.session.tolist(), strict=True) if s == session} == {user}
        ordered = sorted(same)
        assert all(later - earlier < gap for earlier, later in pairwise(ordered))
        others = [t for (u, t), s in zip(rows, found.session.tolist(), strict=True) if u == user and s != session]
        assert all(abs(t - s) >= gap for t in others for s in same)
        later = [t for t in same if t > time]
        assert dwell == min(later) - time if later else np.isnan(dwell)
    assert found.count == len(set(found.session.tolist()))
