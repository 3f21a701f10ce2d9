"""The time split against its definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.time_split import TimeSplit
from lightning_mp.errors import ConfigurationError, DataError

DAY = 86_400_000_000


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.1, 0.2, 0.5]),
)
def test_parts_are_cut_by_time_alone(times, validation, test):
    split = TimeSplit(validation=validation, test=test)
    try:
        parts = split.parts(times)
    except DataError:
        assert len(set(times)) <= 3 or max(times.count(t) for t in times) > 1 or len(times) < 10
        return
    by_part = {part: [t for t, p in zip(times, parts, strict=True) if p == part] for part in set(parts.tolist())}
    assert by_part["train"]
    assert by_part["test"]
    assert ("validation" in by_part) == bool(validation)
    ordered = [by_part[p] for p in ("train", "validation", "test") if p in by_part]
    for earlier, later in pairwise(ordered):
        assert max(earlier) < min(later)  # equal times never straddle a cut
    shuffled = np.random.default_rng(0).permutation(len(times))
    assert (split.parts(np.array(times)[shuffled]) == parts[shuffled]).all()


@given(st.integers(20, 500))
def test_distinct_times_give_the_shares_asked_for(rows):
    parts = TimeSplit(validation=0.1, test=0.2).parts(np.arange(rows))
    assert abs((parts == "test").sum() - rows * 0.2) <= 1
    assert abs((parts == "validation").sum() - rows * 0.8 * 0.1) <= 1


def test_at_a_date():
    times = np.array([0, 1, 2, 3]) * DAY
    assert TimeSplit(validation=0, at="1970-01-03").parts(times).tolist() == ["train", "train", "test", "test"]
    assert TimeSplit(validation=0, at="1970-01-03T01:00:00+01:00").parts(times).tolist() == [
        "train",
        "train",
        "test",
        "test",
    ]


@pytest.mark.parametrize("at", ["2020-01-01", "1960-01-01"])
def test_a_date_outside_the_log_is_refused(at):
    with pytest.raises(
        DataError, match=r"leaves no (test|training) rows: the log goes from 1970-01-01T00:00:00Z to 1970-01-04"
    ):
        TimeSplit(at=at).parts(np.array([0, 1, 2, 3]) * DAY)


def test_one_time_cannot_be_split():
    with pytest.raises(DataError, match="leaves no training rows"):
        TimeSplit().parts(np.zeros(10, dtype=np.int64))
    with pytest.raises(DataError, match="before the validation part at 1970"):
        TimeSplit(validation=0.5, test=0.5).parts([1, 1, 1, 2, 2, 2])
    with pytest.raises(DataError, match="no rows to split"):
        TimeSplit().parts([])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"validation": 1.0}, r"`split.validation` must be in \[0, 1\), got 1.0"),
        ({"test": 0.0}, r"`split.test` must be in \(0, 1\), got 0.0"),
        ({"at": "November"}, "`split.at` must be an ISO date or time, got 'November'"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ConfigurationError, match=text):
        TimeSplit(**settings)
