"""The SQL of a history, run by DuckDB, gives what `point_in_time` counts without it."""

from __future__ import annotations

import duckdb  # noqa: TID253  the engine that the statements are for
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.data.history import History
from lightning_mp.data.point_in_time import point_in_time
from lightning_mp.errors import DataError

HOUR = 3_600_000_000
ROW = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["shoes", 'a"b', None]),
    st.integers(-6, 12) | st.sampled_from([24 * 7, 24 * 7 + 1, 24 * 30]),
    st.sampled_from(["impression", "click", None]),
    st.none() | st.booleans(),
    st.none() | st.integers(-4, 9).map(lambda x: x / 4),
    st.none() | st.integers(0, 4).map(lambda x: x / 4),
)
NAMES = ["user", "category", "time", "event", "cart", "price", "label"]
TYPES = [pa.int64(), pa.string(), pa.int64(), pa.string(), pa.bool_(), pa.float64(), pa.float64()]
WHAT = [
    {"of": "click"},
    {"of": "label"},
    {"of": "impression", "measure": "recency"},
    {"of": "click", "measure": "rate", "per": "impression"},
    {"of": "click", "measure": "rate", "per": "impression", "prior": 3.5},
    {"of": "label", "measure": "rate", "prior": 2.0},
    {"of": "label", "measure": "mean"},
    {"of": "label", "measure": "sum"},
    {"of": "label", "measure": "distinct", "column": "category"},
    {"of": "click", "measure": "sum", "column": "price"},
    {"of": "impression", "measure": "mean", "column": "price"},
    {"of": "impression", "measure": "distinct", "column": "category"},
    {"of": "impression", "measure": "distinct", "column": "price"},
]
WIDE = [
    {"of": "cart"},
    {"of": "cart", "measure": "rate", "per": "impression"},
    {"of": "impression", "measure": "recency"},
    {"of": "cart", "measure": "sum", "column": "price"},
]
CASES = [(what, None) for what in WHAT] + [(what, ("cart",)) for what in WIDE]


def table(rows) -> pa.Table:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, TYPES, strict=True)]
    events = pa.table(dict(zip(NAMES, arrays, strict=True)))
    return events.set_column(2, "time", pa.array(events["time"].to_numpy() * HOUR))


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as opened:
        yield opened


def by_sql(connection, events: pa.Table, asked: np.ndarray, sql: str) -> np.ndarray:
    place = np.full(events.num_rows, -1)
    place[asked] = np.arange(len(asked))
    events = events.append_column("position", pa.array(place)).append_column("asked", pa.array(place >= 0))
    connection.register("events", events)
    found = pa.table(connection.sql(sql))
    values = np.full(len(asked), np.nan)
    values[found["position"].to_numpy()] = found["value"].to_numpy()
    return values


@settings(max_examples=150)
@given(
    st.lists(ROW, min_size=1, max_size=40),
    st.sampled_from(CASES),
    st.sampled_from([("user",), ("category",), ("user", "category")]),
    st.sampled_from(["1h", "3h", "7d", "all"]),
    st.sampled_from(["0s", "1h", "2h"]),
    st.randoms(use_true_random=False),
)
def test_equal_on_every_row(connection, rows, case, by, window, delay, random):
    what, flags = case
    history = History(by=by, window=window, delay=delay, **what)
    events = table(rows)
    asked = np.array(random.sample(range(len(rows)), random.randint(1, len(rows))))
    try:
        made = point_in_time(events, {"x": history}, asked, train_until=12 * HOUR, flags=flags)["x"]
    except DataError:
        assert history.prior
        return
    np.testing.assert_allclose(by_sql(connection, events, asked, made.sql), made.values, rtol=1e-12)


def test_names_are_quoted(connection):
    events = pa.table({'a"; DROP TABLE events; --': [1, 1], "time": [1, 2], "event": ["click", "click"]})
    history = History(of="click", by=('a"; DROP TABLE events; --',))
    made = point_in_time(events, {"x": history}, np.arange(2), train_until=9)["x"]
    assert by_sql(connection, events, np.arange(2), made.sql).tolist() == made.values.tolist() == [0.0, 1.0]
