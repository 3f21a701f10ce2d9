from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.data.item_sequences import item_sequences
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.errors import ConfigurationError, DataError


@pytest.mark.parametrize(("delay", "window"), [(0, None), (3, None), (0, 6), (2, 5)])
def test_against_a_loop_over_all_events(delay, window):
    draw = np.random.default_rng()
    rows, length = 300, 5
    user, time = draw.integers(0, 7, rows), draw.integers(0, 60, rows)
    item, is_event = draw.integers(0, 9, rows).astype(np.int32), draw.random(rows) < 0.7
    asked = draw.permutation(rows)[:100]
    found = item_sequences(
        user, time, item, is_event=is_event, asked=asked, length=length, delay_us=delay, window_us=window
    )
    for place, row in enumerate(asked):
        until = time[row] - delay
        since = -np.inf if window is None else until - window
        seen = [k for k in range(rows) if user[k] == user[row] and is_event[k] and item[k] and since <= time[k] < until]
        wanted = [int(item[k]) for k in sorted(seen, key=lambda k: (time[k], k))][-length:]
        assert found[place].tolist() == [0] * (length - len(wanted)) + wanted


def test_of_no_events():
    nothing = np.zeros(3, dtype=bool)
    found = item_sequences(
        np.arange(3), np.arange(3), np.ones(3, dtype=np.int32), is_event=nothing, asked=np.arange(3), length=2
    )
    assert found.tolist() == [[0, 0]] * 3


def test_leaving_the_last_out_against_a_loop():
    draw = np.random.default_rng()
    user, time = draw.integers(0, 12, 60), draw.integers(0, 30, 60)
    parts = LeaveLastOut(leave_out=2).parts(user, time)
    for code in range(12):
        rows = sorted(np.flatnonzero(user == code), key=lambda k: (time[k], k))
        enough = len(rows) > 4
        wanted = ["train"] * (len(rows) - 4) + ["validation"] * 2 + ["test"] * 2 if enough else ["train"] * len(rows)
        assert [parts[row] for row in rows] == wanted


def test_too_few_events_to_leave_any_out():
    with pytest.raises(DataError, match="no user has more than 2 events, the most is 2: no row can be left out"):
        LeaveLastOut(leave_out=1).parts([1, 1, 2], [1, 2, 3])
    with pytest.raises(ConfigurationError, match=r"`split\.leave_out` must be at least 1, got 0"):
        LeaveLastOut(leave_out=0)
