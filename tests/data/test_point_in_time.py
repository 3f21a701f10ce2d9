"""Histories against a plain double loop over Python rows: no NumPy, no SQL, no code shared with either."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.data.history import History
from lightning_mp.data.point_in_time import point_in_time
from lightning_mp.data.point_in_time_replay import Replay
from lightning_mp.errors import ConfigurationError, DataError

HOUR = 3_600_000_000
KINDS = ["impression", "click", "cart", "order"]
ROW = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["shoes", "bags", 'a"b', None]),
    st.one_of(st.integers(0, 12), st.sampled_from([24 * 7, 24 * 7 + 1, 24 * 30])),
    st.sampled_from([*KINDS[:2], *KINDS]),
    st.one_of(st.none(), st.integers(-4, 9).map(lambda x: x / 4)),
)
LOGS = st.lists(ROW, min_size=1, max_size=30).map(lambda rows: rows + rows[: len(rows) // 5])  # duplicates
HISTORIES = st.builds(
    lambda by, window, delay, what: History(by=tuple(by), window=window, delay=delay, **what),
    st.sampled_from([["user"], ["category"], ["user", "category"]]),
    st.sampled_from(["1h", "3h", "7d", "all"]),
    st.sampled_from(["0s", "1h", "2h"]),
    st.sampled_from([
        {"of": "click"},
        {"of": "impression", "measure": "recency"},
        {"of": "click", "measure": "rate", "per": "impression"},
        {"of": "click", "measure": "rate", "per": "impression", "prior": 3.0},
        {"of": "click", "measure": "sum", "column": "price"},
        {"of": "impression", "measure": "mean", "column": "price"},
        {"of": "click", "measure": "mean", "column": "price", "prior": 2.0},
        {"of": "impression", "measure": "distinct", "column": "category"},
        {"of": "click", "measure": "distinct", "column": "user"},
    ]),
)  # fmt: skip


def table(rows):
    names = ["user", "category", "time", "event", "price"]
    types = [pa.int64(), pa.string(), pa.int64(), pa.string(), pa.float64()]
    arrays = [pa.array([row[place] for row in rows], type=kind) for place, kind in enumerate(types)]
    events = pa.table(dict(zip(names, arrays, strict=True)))
    events = events.set_column(2, "time", pc.multiply(events["time"], HOUR))
    half = pa.array(np.zeros(len(rows), dtype=np.float16))  # DuckDB refuses a table that holds one such column
    return events.append_column("half", half).append_column("row", pa.array(range(len(rows))))


def slow(rows, history, now, keys, training):
    """The definition, row by row."""
    hours = {"1h": 1, "3h": 3, "7d": 168, "all": 10**9, "0s": 0, "2h": 2}
    end = now - hours[history.delay]
    place = {"user": 0, "category": 1, "price": 4}
    seen = [
        row
        for row in rows
        if end - hours[history.window] <= row[2] < end
        and all(row[place[name]] == keys[place[name]] for name in history.by)
    ]
    of = [row for row in seen if row[3] == history.of]

    def ratio(above, below, mean):
        if history.prior:
            return (above + history.prior * mean) / (below + history.prior)
        return above / below if below else math.nan

    if history.measure == "count":
        return len(of)
    if history.measure == "recency":
        return (now - max(row[2] for row in of)) * 3600.0 if of else math.nan
    if history.measure == "rate":
        per = [row for row in training if row[3] == history.per]
        mean = sum(row[3] == history.of for row in training) / len(per) if per else math.nan
        return ratio(len(of), sum(row[3] == history.per for row in seen), mean)
    values = [row[place[history.column]] for row in of if row[place[history.column]] is not None]
    if history.measure == "distinct":
        return len(set(values))
    if history.measure == "sum":
        return sum(values)
    fitted = [row[4] for row in training if row[3] == history.of and row[4] is not None]
    return ratio(sum(values), len(values), sum(fitted) / len(fitted) if fitted else math.nan)


@settings(max_examples=200)
@given(LOGS, HISTORIES, st.integers(1, 800), st.randoms(use_true_random=False))
def test_equal_to_brute_force_and_blind_to_the_future_and_to_the_order_of_the_file(rows, history, until, random):
    training = [row for row in rows if row[2] < until]
    asked = np.array(sorted(random.sample(range(len(rows)), random.randint(1, len(rows)))))
    wanted = [slow(rows, history, rows[row][2], rows[row], training) for row in asked]
    events = table(rows)
    if history.prior and any(math.isnan(value) for value in wanted):
        with pytest.raises(DataError, match="the training part has no"):
            point_in_time(events, {"x": history}, asked, train_until=until * HOUR)
        return
    found = point_in_time(events, {"x": history}, asked, train_until=until * HOUR)["x"]
    np.testing.assert_allclose(found.values, wanted, rtol=1e-12)
    replay = Replay(events)
    again = [replay.value(history, int(row), found.prior_mean) for row in asked]
    np.testing.assert_allclose(again, wanted, rtol=1e-12)
    # What comes later changes nothing before it.
    last = max(row[2] for row in rows)
    future = [(row[0], row[1], last + random.randint(0, 3), row[3], row[4]) for row in rows]
    if until <= last or not history.prior:  # else the future would change the training part itself
        longer = point_in_time(table(rows + future), {"x": history}, asked, train_until=until * HOUR)
        np.testing.assert_allclose(longer["x"].values, wanted, rtol=1e-12)
    # Nor does the order of the file.
    order = list(range(len(rows)))
    random.shuffle(order)
    place = {row: index for index, row in enumerate(order)}
    moved = np.array([place[row] for row in asked.tolist()])
    shuffled = point_in_time(table([rows[row] for row in order]), {"x": history}, moved, train_until=until * HOUR)
    np.testing.assert_array_equal(shuffled["x"].values, found.values)


def test_the_wide_form_counts_each_row_as_an_impression():
    events = pa.table({
        "user": [1, 1, 1, 1],
        "time": [1, 2, 3, 4],
        "event": pa.array(["impression"] * 3 + [None]),
        "click": pa.array([True, False, True, None]),
        "row": [0, 1, 2, 3],
    })  # fmt: skip
    history = History(of="click", per="impression", by=("user",), measure="rate")
    found = point_in_time(events, {"x": history}, np.arange(4), train_until=9, flags=("click",))["x"].values
    np.testing.assert_allclose(found, [np.nan, 1.0, 0.5, 2 / 3])
    replay = Replay(events, ("click",))
    np.testing.assert_allclose([replay.value(history, row) for row in range(4)], found)


def test_a_negative_time_and_the_ends_of_a_window():
    # [t - delay - window, t - delay): 1 h and 2 h before are seen, the row's own hour and 3 h before are not.
    events = table([(0, None, hour, "click", None) for hour in (-5, -4, -3, -2)])
    history = History(of="click", by=("user",), window="2h")
    found = point_in_time(events, {"x": history}, np.array([3]), train_until=0)["x"].values
    assert found.tolist() == [2.0]


def test_a_spilling_session_gives_the_same():
    generator = np.random.default_rng()
    rows = 200_000
    events = pa.table({
        "user": generator.integers(0, 5_000, rows),
        "time": generator.integers(0, 10**12, rows),
        "event": generator.choice(["impression", "click"], rows),
        "row": np.arange(rows),
    })  # fmt: skip
    history = {"x": History(of="click", per="impression", by=("user",), window="7d", measure="rate", prior=5)}
    asked = np.arange(0, rows, 3)
    free = point_in_time(events, history, asked, train_until=10**12)["x"].values
    small = point_in_time(events, history, asked, train_until=10**12, memory_limit="60MB")["x"].values
    np.testing.assert_array_equal(free, small)


def test_histories_made_together_are_those_made_alone_with_any_limit_of_memory():
    generator = np.random.default_rng()
    rows = 90_000
    events = pa.table({
        "user": generator.integers(0, 900, rows),
        "category": pa.array(generator.choice(["shoes", "bags", "hats"], rows)).dictionary_encode(),
        "time": generator.integers(0, 10**12, rows),
        "event": generator.choice(["impression", "click"], rows),
        "price": pa.array(generator.random(rows), mask=generator.random(rows) < 0.1),
    })  # fmt: skip
    events = pa.concat_tables([events.slice(0, 7), events.slice(7, 50_000), events.slice(50_007)])  # chunks
    histories = {
        "rate": History(of="click", per="impression", by=("user", "category"), window="1d", measure="rate", prior=5),
        "idle": History(of="click", by=("user",), measure="recency"),
        "paid": History(of="click", by=("user", "category"), measure="mean", column="price", window="7d"),
        "kinds": History(of="click", by=("user",), measure="distinct", column="category", delay="1h", window="12h"),
    }
    asked = generator.permutation(rows)[: rows // 3]
    limits = (None, "1KB", "1MB", "400MB")
    made = [point_in_time(events, histories, asked, train_until=10**11, memory_limit=limit) for limit in limits]
    for name, history in histories.items():
        alone = point_in_time(events.combine_chunks(), {name: history}, asked, train_until=10**11)[name]
        assert all(list(one) == list(histories) for one in made)
        for one in made:
            np.testing.assert_array_equal(one[name].values, alone.values)
            assert (one[name].sql, one[name].prior_mean) == (alone.sql, alone.prior_mean)


def test_nothing_happened_and_nothing_asked():
    history = {"x": History(of="click", by=("user", "category"))}
    assert len(point_in_time(table([]), history, np.arange(0), train_until=0)["x"].values) == 0
    rows = [(0, "bags", 3, "click", None), (0, "bags", 4, "click", None)]
    assert len(point_in_time(table(rows), history, np.arange(0), train_until=0)["x"].values) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"of": "clik", "by": ["user"]}, "`of` must be one of"),
        ({"of": "click", "by": []}, "names no column"),
        ({"of": "click", "by": ["user", "user"]}, "twice"),
        ({"of": "click", "by": ["user"], "as": "rate"}, "needs `per`"),
        ({"of": "click", "by": ["user"], "as": "mean"}, "needs `column`"),
        ({"of": "click", "by": ["user"], "column": "price"}, "reads no `column`"),
        ({"of": "click", "by": ["user"], "prior": 3}, "`prior` is for"),
        ({"of": "click", "by": ["user"], "as": "mean", "column": "x", "prior": -1}, "from 0 on"),
        ({"of": "click", "by": ["user"], "window": "0d"}, "longer than 0"),
        ({"of": "click", "by": ["user"], "window": "week"}, "must be a whole number and"),
        ({"of": "click", "by": ["user"], "delay": "-1d"}, "must be a whole number and"),
        ({"of": "click", "by": ["user"], "hours": 3}, "has no setting `hours`"),
        ({"by": ["user"]}, "lacks `of`"),
    ],
)
def test_settings_that_cannot_work(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        History.from_settings("ctr", settings)
