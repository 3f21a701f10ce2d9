from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.baselines.earlier_sums import earlier_sums

rows = st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 6), st.floats(-5, 5)), max_size=40)


def test_equal_times_never_see_each_other():
    count, total = earlier_sums([1] * 4, [5, 5, 6, 5], [1.0, 1.0, 1.0, 1.0])
    assert count.tolist() == [0, 0, 3, 0]
    assert total.tolist() == [0.0, 0.0, 3.0, 0.0]


@given(rows)
@settings(deadline=None, max_examples=200)
def test_every_row_sums_its_keys_strictly_earlier_rows(log):
    count, total = earlier_sums(*np.array(log).reshape(-1, 3).T)
    past = [[value for key, time, value in log if key == mine and time < now] for mine, now, _ in log]
    assert count.tolist() == [len(values) for values in past]
    assert total == pytest.approx([sum(values) for values in past], abs=1e-12)
