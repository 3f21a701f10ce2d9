"""What goes over rows a piece at a time, against NumPy and Arrow over all rows at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lightning_mp.data import scratch_array
from lightning_mp.data.chosen_rows import chosen_places, chosen_rows, joined, rows_at
from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.repeated_rows import repeated_rows
from lightning_mp.data.row_pieces import ROWS, column_array, column_pieces
from lightning_mp.data.rows_of_keys import rows_of_keys
from lightning_mp.data.shuffled_rows import shuffled_rows
from lightning_mp.data.taken_rows import taken_rows

COUNT = 2 * ROWS + 77


@pytest.fixture(autouse=True)
def on_disk(monkeypatch):
    monkeypatch.setattr(scratch_array, "IN_MEMORY", 1000)


@pytest.fixture
def draw():
    return np.random.default_rng()


def chunked(values, draw):
    cuts = np.sort(draw.integers(0, len(values), 3)).tolist()
    return pa.chunked_array([values[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(values)], strict=True)])


def test_rows_by_mask_and_place(draw):
    values, mask, places = draw.normal(size=(COUNT, 2)), draw.random(COUNT) < 0.4, draw.integers(0, COUNT, COUNT)
    assert np.array_equal(chosen_rows(values, mask), values[mask])
    assert np.array_equal(chosen_places(mask), np.flatnonzero(mask))
    assert np.array_equal(rows_at(values, places), values[places])
    assert np.array_equal(joined(places, places[mask]), np.concatenate([places, places[mask]]))


def test_columns_in_pieces(draw):
    numbers = draw.normal(size=COUNT)
    missing = draw.random(COUNT) < 0.2
    column = chunked(pa.array(numbers, mask=missing), draw)
    assert np.array_equal(column_array(column, np.float64), np.where(missing, np.nan, numbers), equal_nan=True)
    pieces = list(column_pieces(column))
    assert pa.chunked_array([piece for _, piece in pieces]).equals(column)
    assert [place.start for place, _ in pieces] == [0, *(place.stop for place, _ in pieces[:-1])]
    assert max(len(piece) for _, piece in pieces) <= ROWS


@pytest.mark.parametrize("kind", ["text", "integer", "double"])
def test_codes_come_in_the_order_of_first_appearance(draw, monkeypatch, kind):
    monkeypatch.setattr("lightning_mp.data.column_codes._AT_ONCE", 50_000)
    numbers = draw.integers(0, 5000, COUNT)
    raw = {"text": [f"k{n}" for n in numbers.tolist()], "integer": numbers, "double": numbers / 3}[kind]
    values = pa.array(raw, mask=draw.random(COUNT) < 0.1)
    codes, words = column_codes(chunked(values, draw))
    place = {}
    wanted = [-1 if value is None else place.setdefault(value, len(place)) for value in values.to_pylist()]
    assert codes.tolist() == wanted
    assert words.to_pylist() == list(place)


def test_buckets_hold_every_row_once_and_a_key_together(draw):
    key = draw.integers(0, 900, COUNT) * 64
    buckets = list(key_buckets(key, rows=20_000))
    assert len(buckets) > 5
    assert np.array_equal(np.sort(np.concatenate(buckets)), np.arange(COUNT))
    assert all((np.diff(places) > 0).all() for places in buckets if len(places))
    holders = [set(np.unique(key[places]).tolist()) for places in buckets]
    assert sum(map(len, holders)) == len(set(key.tolist()))


@pytest.mark.parametrize("places", ["some", "twice", "all", "none"])
def test_rows_of_a_table(draw, places):
    table = pa.table({"a": chunked(pa.array([f"t{n}" for n in range(COUNT)]), draw), "b": draw.normal(size=COUNT)})
    rows = {
        "some": np.flatnonzero(draw.random(COUNT) < 0.3),
        "twice": np.sort(draw.integers(0, COUNT, COUNT)),
        "all": np.arange(COUNT),
        "none": np.zeros(0, dtype=np.int64),
    }[places]
    assert taken_rows(table, rows).equals(table.take(pa.array(rows)))


def test_rows_that_share_keys_with_the_asked_ones(draw, monkeypatch):
    monkeypatch.setattr("lightning_mp.data.rows_of_keys._AT_ONCE", 3000)
    users = pa.array([None if u == 0 else f"u{u}" for u in draw.integers(0, 40, 20_000).tolist()])
    table = pa.table({"user": users, "page": draw.integers(0, 5, 20_000), "row": np.arange(20_000)})
    asked = draw.choice(20_000, 60, replace=False)
    keys = list(zip(users.to_pylist(), table["page"].to_pylist(), strict=True))
    found = {}
    tables = list(rows_of_keys(table, ["user", "page"], asked))
    assert len(tables) > 1
    for few, places in tables:
        numbers = few["row"].to_pylist()
        for place, at in places:
            assert place not in found
            found[place] = numbers[at]
            same = [row for row, key in enumerate(keys) if key == keys[asked[place]]]
            assert set(same) <= set(numbers)
    assert [found[place] for place in range(len(asked))] == asked.tolist()


def test_a_shuffle_is_the_generator_s_own(draw):
    seed = int(draw.integers(2**32))
    wanted = np.random.default_rng(seed).permutation(COUNT)
    assert np.array_equal(shuffled_rows(COUNT, np.random.default_rng(seed)), wanted)


def test_repeated_rows_are_counted(draw):
    table = pa.table({
        "event": pa.array(["view", "click"]).take(pa.array(draw.integers(0, 2, COUNT))),
        "value": pa.array(draw.integers(0, 3, COUNT) / 2, mask=draw.random(COUNT) < 0.3),
        "flag": draw.random(COUNT) < 0.5,
        "brand": [str(n) for n in range(COUNT)],
    })  # fmt: skip
    user, item, time = (draw.integers(0, 30, COUNT) for _ in range(3))
    told = zip(*(table[name].to_pylist() for name in ("event", "value", "flag")), strict=True)
    rows = set(zip(user.tolist(), item.tolist(), time.tolist(), told, strict=True))
    assert repeated_rows(table, user, item, time) == COUNT - len(rows)
