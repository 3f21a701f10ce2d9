"""Columns of times against plain Python; any split gives the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.time_state import TimeState

NOW = 1_700_000_000_000_000
TIMES = st.lists(st.one_of(st.none(), st.just(0), st.integers(-(2**52), 2**52)), max_size=40)


@given(times=TIMES, cut=st.integers(0, 40))
def test_counts_equal_plain_python_however_the_rows_are_split(times, cut):
    one, other = TimeState(NOW), TimeState(NOW)
    for state, part in ((one, times[:cut]), (other, times[cut:])):
        valid = np.array([moment is not None for moment in part], dtype=bool)
        state.update(np.array([m for m in part if m is not None], dtype=np.int64), valid)
    one.merge(other)
    there = [moment for moment in times if moment is not None]
    assert (one.rows, one.nulls) == (len(times), times.count(None))
    assert one.future == sum(moment > NOW for moment in there)
    assert one.epoch == there.count(0)
    assert (one.low, one.high) == (min(there, default=None), max(there, default=None))
    assert one.distinct.count == len(set(there))
