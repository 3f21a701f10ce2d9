"""Small files of kinds that broke other tools: each gives the right value, or says file, line, column and value."""

from __future__ import annotations

import re

import pyarrow.compute as pc
import pytest

from lightning_mp.data.columns import Columns
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.events import read_events
from lightning_mp.errors import DataError

SHOP = Columns(user="user_id", item="item_id", time="timestamp", event="event")
ATTRIBUTES = {"brand": "string", "category": "string", "price": "double", "dwell_seconds": "double"}
PLAIN = [("u1", "i1", "view", "acme", 19.9), ("u1", "i1", "cart", "acme", 19.9), ("u2", "i2", "order", None, 120.0)]


@pytest.fixture
def case(shared):
    def read(name, **settings):
        given = {"columns": SHOP, "attributes": ATTRIBUTES, "max_bad_share": 1.0, **settings}
        return read_events(shared / "cases" / name, **given)

    return read


def rows(log, *names):
    return list(zip(*(log.table[name].to_pylist() for name in names), strict=True))


def rejected(log):
    return [(r["line"], r["column"], r["reason"]) for r in log.rejects.to_pylist()]


@pytest.mark.parametrize(
    ("name", "csv"),
    [
        ("plain.csv", CsvDialect()),
        ("bom_crlf.csv", CsvDialect()),
        ("utf16.csv", CsvDialect(encoding="utf-16")),
        ("semicolon_decimal_comma.csv", CsvDialect(delimiter=";", decimal=",")),
    ],
)
def test_the_same_three_events(case, name, csv):
    log = case(name, csv=csv)
    assert rows(log, "user", "item", "event", "brand", "price") == PLAIN
    assert log.rejected == 0
    assert log.table["dwell_seconds"].to_pylist() == [12.5, 3.0, 40.0]


def test_latin1(case):
    log = case("latin1.csv", csv=CsvDialect(encoding="latin-1"))
    assert rows(log, "category", "brand") == [("café", "Hermès")]


@pytest.mark.parametrize(
    ("name", "words", "hint"),
    [
        ("latin1.csv", r"latin1\.csv` is not utf-8: line 2 holds the byte 0xe9", r"csv\.encoding: latin-1"),
        ("utf16.csv", r"utf16\.csv` is not utf-8: line 1", r"csv\.encoding: utf-16"),
        (
            "semicolon_decimal_comma.csv",
            "one column when cut at `,`; its header holds semicolons",
            r"csv\.delimiter: ';'",
        ),
        ("header_only.csv", "holds a header and no rows", "check"),
        ("empty.csv", "is empty: 0 bytes", "check"),
        ("missing_mapped_column.csv", r"no column `user_id` \(columns.user\); it has `visitor`, `item_id`", "visitor"),
        ("unknown_event.csv", r"`wishlist` \(1 row, first at line 5\); known rows: view 3", "event_map"),
        ("nul_and_control.csv", r"none of 1 rows was kept; rejected: 1 x `item_id` holds the control", "mend"),
        ("mixed_time.csv", "5 rows are bad.*line 6, column `timestamp`.*names no time zone", "time_zone"),
    ],
)
def test_errors_name_what_and_where_and_one_thing_to_do(case, name, words, hint):
    share = 0.0 if name == "mixed_time.csv" else 1.0
    with pytest.raises(DataError) as caught:
        case(name, max_bad_share=share)
    assert re.search(words, caught.value.problem)
    assert name in caught.value.problem
    assert re.search(hint, caught.value.hint)


def test_quoted_newline(case):
    log = case("quoted_newline.csv")
    assert rows(log, "category", "brand") == [("shoes\nand boots", 'a "quoted" brand'), ("bags", "x")]


def test_mixed_time(case):
    log = case("mixed_time.csv")
    assert log.table["time"].to_pylist() == [1_772_359_200_000_000] * 4
    assert rejected(log) == [(6, "timestamp", "names no time zone, and none is declared")]
    declared = Columns(user="user_id", item="item_id", time="timestamp", event="event", time_zone="UTC")
    assert set(case("mixed_time.csv", columns=declared).table["time"].to_pylist()) == {1_772_359_200_000_000}


def test_daylight_saving(case):
    with pytest.raises(DataError, match=r"happens twice in Europe/Berlin.*does not exist in Europe/Berlin"):
        case("daylight_saving.csv")


def test_unknown_event(case):
    log = case("unknown_event.csv", event_map={"wishlist": "ignore"})
    assert (log.counts, log.ignored) == ({"view": 3, "cart": 1, "order": 1}, {"wishlist": 1})


def test_impossible_values(case):
    log = case("impossible_values.csv")
    assert rejected(log) == [
        (4, "timestamp", "does not lie before 2100-01-01"),
        (5, "timestamp", "lies before 1990-01-01"),
    ]
    assert pc.min_max(log.table["price"]).as_py() == {"min": -3.0, "max": 99999999.0}
    assert pc.min_max(log.table["dwell_seconds"]).as_py() == {"min": -5.0, "max": 1e9}


def test_nul_and_ragged_rows_are_counted_and_good_ones_kept(case):
    log = case("ragged.csv")
    assert rows(log, "user", "item", "event", "brand", "price") == PLAIN
    assert rejected(log) == [(2, "", "has 7 fields, the header has 8"), (3, "", "has 9 fields, the header has 8")]


def test_ids_keep_what_was_written(case):
    log = case("leading_zero_ids.csv")
    assert rows(log, "user", "item") == [("007", "0001"), ("7", "1")]
    whole = Columns(
        user="user_id", item="item_id", time="timestamp", event="event", user_type="int64", item_type="int64"
    )
    log = case("ids_as_floats.csv", columns=whole)
    assert rows(log, "user", "item") == [(1, 16777217), (2, 16777216)]
    assert rejected(log)[0][:2] == (4, "user_id")
    assert rejected(case("ids_as_floats.csv"))[0][:2] == (4, "user_id")


def test_json_lines(case):
    columns = Columns(user="session", item="events.aid", time="events.ts", event="events.type")
    log = case(
        "json_lines.jsonl",
        columns=columns,
        attributes={},
        event_map={"clicks": "click", "carts": "cart", "orders": "order"},
    )
    assert rows(log, "user", "item", "event") == [("1", "59625", "click"), ("1", "1142000", "cart")]
    assert [(line, column) for line, column, _ in rejected(log)] == [(3, "")]
    assert log.rejects["reason"][0].as_py().startswith("is not JSON")
