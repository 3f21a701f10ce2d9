"""Event logs, good and bad, as files: the right values, one clear error, or counted rejections."""

# ruff: noqa: E501  tables of cases read better in one line each
from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from lightning_mp.data.columns import Columns, ConstantEvent, EventFlags
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.events import read_events
from lightning_mp.errors import ConfigurationError, DataError

COLUMNS = Columns(user="user_id", item="item_id", time="timestamp", event="event")
ATTRIBUTES = {"dwell_seconds": "double", "brand": "string", "price": "double"}
HEADER = "user_id,item_id,event,timestamp,dwell_seconds,category,brand,price\n"
PLAIN = (
    HEADER
    + "u1,i1,view,2026-03-01T10:00:00Z,12.5,shoes,acme,19.90\n"
    + "u1,i1,cart,2026-03-01T10:01:00Z,3,shoes,acme,19.90\n"
    + "u2,i2,order,2026-03-02T09:00:00Z,40,bags,,120\n"
)
TEN = 1772359200000000


@pytest.fixture
def write(tmp_path):
    def write(content, name="log.csv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


def rejects(log):
    return [tuple(row.values()) for row in log.rejects.to_pylist()]


@pytest.mark.parametrize("content", [PLAIN, b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n").encode(), PLAIN.rstrip("\n")])
def test_long_form(write, content):
    log = read_events(write(content), columns=COLUMNS, attributes=ATTRIBUTES)
    assert log.table.to_pydict() == {
        "row": [0, 1, 2],
        "user": ["u1", "u1", "u2"],
        "item": ["i1", "i1", "i2"],
        "time": [TEN, TEN + 60_000_000, TEN + 82_800_000_000],
        "dwell_seconds": [12.5, 3.0, 40.0],
        "brand": ["acme", "acme", None],
        "price": [19.9, 19.9, 120.0],
        "event": ["view", "cart", "order"],
    }
    assert (log.counts, log.rows, log.rejected) == ({"view": 1, "cart": 1, "order": 1}, 3, 0)
    assert log.time_formats == {"ISO with zone": 3}
    assert log.digest == hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


def test_wide_form(write):
    file = write("u,i,t,clicked,bought\n1,a,1772359200,1,0\n1,b,1772359200,true,True\n2,b,1772359200,0,false\n")
    columns = Columns(user="u", item="i", time="t", event=EventFlags(flags={"click": "clicked", "order": "bought"}))
    log = read_events(file, columns=columns)
    assert log.table.column_names == ["row", "user", "item", "time", "click", "order"]
    assert (log.table["click"].to_pylist(), log.table["order"].to_pylist()) == (
        [True, True, False],
        [False, True, False],
    )
    assert log.counts == {"impression": 3, "click": 2, "order": 1}


def test_a_missing_or_foreign_flag_is_rejected(write):
    file = write("u,i,t,clicked\n1,a,1772359200,1\n1,b,1772359200,\n2,b,1772359200,2\n")
    columns = Columns(user="u", item="i", time="t", event=EventFlags(flags={"click": "clicked"}))
    log = read_events(file, columns=columns, max_bad_share=1)
    assert log.counts == {"impression": 1, "click": 1}
    assert rejects(log) == [
        (3, "clicked", "", "is missing"),
        (4, "clicked", "2", "is not a flag (0 or 1, true or false)"),
    ]


def test_constant_event_and_value(write):
    file = write("userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n1,1029,,1260759179\n")
    columns = Columns(
        user="userId", item="movieId", time="timestamp", event=ConstantEvent(constant="order"), value="rating"
    )
    log = read_events(file, columns=columns)
    assert log.table["event"].to_pylist() == ["order", "order"]
    assert log.table["value"].to_pylist() == [2.5, None]
    assert log.time_formats == {"epoch seconds": 2}


@pytest.mark.parametrize("rows", [3, 300_000])
def test_parquet_gives_the_same_as_csv(tmp_path, rows):
    generator = np.random.default_rng(rows)
    seconds = 1_772_359_200 + generator.integers(0, 10**6, rows)
    table = pa.table(
        {
            "u": pa.array([f"u{i}" for i in generator.integers(0, 50, rows)]),
            "i": generator.integers(0, 50, rows),
            "t": pa.array(seconds * 10**6, pa.timestamp("us", tz="UTC")),
            "kind": pa.array(generator.choice(["view", "Cart ", "purchase"], rows)).dictionary_encode(),
            "price": pa.array(np.round(generator.lognormal(2, 1, rows), 2), mask=generator.random(rows) < 0.2),
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    texts = pa.array(np.char.add(np.datetime_as_string(seconds.astype("datetime64[s]")), "Z"))
    csv.write_csv(table.set_column(2, "t", texts), tmp_path / "log.csv")
    options = {"event_map": {"PURCHASE": "order"}, "attributes": {"price": "double"}}
    columns = Columns(user="u", item="i", time="t", event="kind", item_type="int64")
    told = []
    one = read_events(tmp_path / "log.parquet", columns=columns, progress=told.append, **options)
    assert told == (["read 262,144 rows of log.parquet (87%)"] if rows == 300_000 else [])
    other = read_events(tmp_path / "log.csv", columns=columns, **options)
    assert one.table.equals(other.table)
    assert one.counts == other.counts


def test_keys_stay_as_they_are_written(write, tmp_path):
    file = write("u,i,t\n007,0001,1772359200\n7,1,1772359200\n 7,x,1772359200\n")
    columns = {"user": "u", "item": "i", "time": "t", "event": ConstantEvent(constant="view")}
    assert read_events(file, columns=Columns(**columns)).table["user"].to_pylist() == ["007", "7", " 7"]
    numbers = read_events(file, columns=Columns(**columns, user_type="int64"))
    assert numbers.table["user"].to_pylist() == [7, 7, 7]
    parquet.write_table(pa.table({"u": [16777217.0, 2.0], "i": [1, 2], "t": [TEN, TEN]}), tmp_path / "a.parquet")
    log = read_events(tmp_path / "a.parquet", columns=Columns(**columns))
    assert log.table.schema.field("user").type == pa.int64()
    assert log.table["user"].to_pylist() == [16777217, 2]


def test_words_for_a_missing_key_are_rejected(write):
    words = ["nan", "NaN", "None", "NULL", "", "<NA>", "\\N", "Nancy", "NA1"]
    file = write("u,i,t\n" + "".join(f"{word},a,1772359200\n" for word in words))
    columns = Columns(user="u", item="i", time="t", event=ConstantEvent(constant="view"))
    log = read_events(file, columns=columns, max_bad_share=1)
    assert log.table["user"].to_pylist() == ["Nancy", "NA1"]
    assert [reason for *_, reason in rejects(log)].count("is a word for a missing key") == 6


def test_declared_words_for_missing(write):
    file = write(PLAIN.replace("acme", "-"))
    log = read_events(file, columns=COLUMNS, attributes=ATTRIBUTES, csv=CsvDialect(missing=("-",)))
    assert log.table["brand"].to_pylist() == [None, None, None]


def test_rejects_name_line_column_value_and_reason(write):
    bad = HEADER + (
        'u1,i1,view,2026-03-01T10:00:00Z,1,"two\nlines",b,1\n'
        ",i1,view,2026-03-01T10:00:00Z,1,a,b,1\n"
        "u1,i1,view,2999-01-01T00:00:00Z,1,a,b,1\n"
        "u1,i1,view,0,1,a,b,1\n"
        "u1,i1,view,,1,a,b,1\n"
        'u1,i1,view,2026-03-01T10:00:00Z,"1,5",a,b,1\n'
        "u1,i1,view,2026-03-01T10:00:00Z,1,a,b,1e999\n"
        "u1,i1,,2026-03-01T10:00:00Z,1,a,b,1\n"
        "u1,i1\n"
        "u9,i9,order,2026-03-01T10:00:00Z,1,a,b,1\n"
    )
    log = read_events(write(bad), columns=COLUMNS, attributes=ATTRIBUTES, max_bad_share=0.8)
    assert rejects(log) == [
        (4, "user_id", "", "is missing"),
        (5, "timestamp", "2999-01-01T00:00:00Z", "does not lie before 2100-01-01"),
        (6, "timestamp", "0", "lies before 1990-01-01"),
        (7, "timestamp", "", "is missing"),
        (8, "dwell_seconds", "1,5", "is not a number (a decimal comma?)"),
        (9, "price", "1e999", "is not finite"),
        (10, "event", "", "is missing"),
        (11, "", "u1,i1", "has 2 fields, the header has 8"),
    ]
    assert (log.rejected, log.rows, log.counts) == (8, 10, {"view": 1, "order": 1})
    assert log.table["row"].to_pylist() == [0, 9]
    with pytest.raises(DataError) as caught:
        read_events(write(bad), columns=COLUMNS, attributes=ATTRIBUTES, max_bad_share=0.79)
    assert "8 of 10 rows are bad (80.000%, allowed are 79.000%); first at line 4, column `user_id`: ''" in str(
        caught.value
    )
    assert caught.value.hint == "mend the file, or allow this share with `max_bad_share: 0.8`"
    assert caught.value.exit_code == 3


def test_a_file_of_bad_rows_alone_is_told_to_be_a_wrong_setting(write):
    path = write("user_id,item_id,timestamp,outcome\n" + "u,i,2024-01-01T00:00:00Z,bought\n" * 300)
    columns = Columns(user="user_id", item="item_id", time="timestamp", event=EventFlags(flags={"order": "outcome"}))
    with pytest.raises(DataError, match="300 of 300 rows are bad") as caught:
        read_events(path, columns=columns)
    assert caught.value.hint == "a flag is a column of 0 and 1; words, one event a row, are named with `event: COLUMN`"
    columns = Columns(user="user_id", item="item_id", time="outcome", event=ConstantEvent(constant="order"))
    with pytest.raises(DataError, match="300 of 300 rows are bad") as caught:
        read_events(path, columns=columns)
    assert caught.value.hint.startswith("look at the first of them: so many are a wrong `columns` or `csv` setting")


def test_times_of_five_ways_are_one_instant(write):
    ways = ["1772359200", "1772359200000", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00+01:00", "2026-03-01 10:00:00"]
    file = write("u,i,t\n" + "".join(f"u,i,{way}\n" for way in ways))
    columns = {"user": "u", "item": "i", "time": "t", "event": ConstantEvent(constant="view")}
    with pytest.raises(DataError, match="line 6, column `t`: '2026-03-01 10:00:00' names no time zone") as caught:
        read_events(file, columns=Columns(**columns))
    assert "columns.time_zone" in caught.value.hint
    log = read_events(file, columns=Columns(**columns, time_zone="UTC"))
    assert log.table["time"].to_pylist() == [TEN] * 5
    assert sum(log.time_formats.values()) == 5


def test_bad_rows_beyond_what_is_kept_are_still_counted(write):
    file = write("u,i,t\n" + "u,i,x\n" * 20_001 + "u,i,1772359200\n")
    columns = Columns(user="u", item="i", time="t", event=ConstantEvent(constant="view"))
    log = read_events(file, columns=columns, max_bad_share=1)
    assert (log.rejected, log.rejects.num_rows, log.table.num_rows) == (20_001, 10_000, 1)


@pytest.mark.parametrize(
    ("content", "problem", "hint"),
    [
        ("", "is empty: 0 bytes", "check what was to write it"),
        (HEADER, "holds a header and no rows", "check what was to write it"),
        (HEADER.rstrip("\n"), "holds a header and no rows", "check what was to write it"),
        (
            PLAIN.replace("user_id", "visitor"),
            "has no column `user_id` (columns.user); it has `visitor`, `item_id`, `event`, `timestamp`, `dwell_seconds`, "
            "`category`, `brand`, `price`",
            "the nearest to `user_id` is `visitor`",
        ),
        (PLAIN.replace("price", "pric\u202ee"), "has no column `price` (a feature or label)", "is `pric\\u202ee`"),
        (PLAIN.replace("category", "brand"), "has 2 columns called `brand`", "give each its own name"),
        (
            PLAIN.replace(",", ";"),
            "has one column when cut at `,`; its header holds semicolons: user_id;item_id",
            "declare the delimiter: `csv.delimiter: ';'`",
        ),
        (PLAIN.replace(",", "\t"), "its header holds tabs", "declare the delimiter: `csv.delimiter: '\\t'`"),
        (PLAIN.replace("cart", "wishlist"), "unknown kinds of event: `wishlist` (1 row, first at line 3)", "map each"),
        (PLAIN.replace("acme", "Herm\u00e8s").encode("latin-1"), "is not utf-8: line 2 holds the byte 0xe8", "encoding"),
        (PLAIN.encode("utf-16"), "is not utf-8: line 1 starts with the byte-order mark of UTF-16", "csv.encoding: utf-16"),
        (HEADER + "u\x001,i,view,1772359200,1,a,b,1\n", "none of 1 rows was kept; rejected: 1 x `user_id` holds the control "
         "character U+0000", "mend the file"),
    ],
)  # fmt: skip
def test_bad_files_give_one_clear_error(write, content, problem, hint):
    with pytest.raises(DataError) as caught:
        read_events(write(content), columns=COLUMNS, attributes=ATTRIBUTES, max_bad_share=1)
    assert problem in caught.value.problem
    assert hint in caught.value.hint
    assert "log.csv" in caught.value.problem


def test_missing_columns_are_named_together(write):
    with pytest.raises(DataError, match=r"no columns `user_id` \(columns.user\), `item_id` \(columns.item\), `event`"):
        read_events(write("timestamp\n1\n"), columns=COLUMNS)


def test_rows_that_are_all_ignored(write):
    ignored = dict.fromkeys(["view", "cart", "order"], "ignore")
    with pytest.raises(DataError, match=r"none of 3 rows was kept; rejected: none; ignored: `view` 1"):
        read_events(write(PLAIN), columns=COLUMNS, event_map=ignored)


def test_semicolons_and_decimal_commas_with_their_options(write):
    file = write(PLAIN.replace(",", ";").replace("12.5", "12,5").replace("19.90", "19,90"))
    log = read_events(file, columns=COLUMNS, attributes=ATTRIBUTES, csv=CsvDialect(delimiter=";", decimal=","))
    assert log.table["price"].to_pylist() == [19.9, 19.9, 120.0]
    with pytest.raises(DataError) as caught:
        read_events(file, columns=COLUMNS, attributes=ATTRIBUTES, csv=CsvDialect(delimiter=";"))
    assert caught.value.hint == "declare it with `csv.decimal: ','`"


def test_settings_that_cannot_work(write):
    file = write(PLAIN)
    with pytest.raises(ConfigurationError, match=r"`max_bad_share` must be in \[0, 1\], got 2"):
        read_events(file, columns=COLUMNS, max_bad_share=2)
    with pytest.raises(
        ConfigurationError, match="attribute `time` has the name of a column that every event table has"
    ):
        read_events(file, columns=COLUMNS, attributes={"time": "string"})


def test_a_parquet_time_without_zone_needs_one(tmp_path):
    table = pa.table({"u": ["a"], "i": ["b"], "t": pa.array([datetime(2026, 3, 1, tzinfo=UTC).replace(tzinfo=None)])})
    parquet.write_table(table, tmp_path / "a.parquet")
    columns = {"user": "u", "item": "i", "time": "t", "event": ConstantEvent(constant="view")}
    with pytest.raises(DataError, match="holds timestamp"):
        read_events(tmp_path / "a.parquet", columns=Columns(**columns))
    log = read_events(tmp_path / "a.parquet", columns=Columns(**columns, time_zone="Europe/Berlin"))
    assert log.table["time"].to_pylist() == [TEN - 11 * 3_600_000_000]


@pytest.mark.parametrize(
    ("path", "rows", "counts", "columns", "event_map"),
    [
        (
            "data/movielens_small/ratings.csv",
            100_004,
            {"view": 100_004},
            Columns(user="userId", item="movieId", time="timestamp", event=ConstantEvent(constant="view"), value="rating"),
            None,
        ),
        (
            "data/rees46/2019-Oct_head.csv",
            17_434,
            {"view": 17_055, "order": 214, "cart": 165},
            Columns(user="user_id", item="product_id", time="event_time", event="event_type"),
            {"purchase": "order"},
        ),
        (
            "data/complete_journey/transactions.parquet",
            75_000,
            {"order": 75_000},
            Columns(user="household_id", item="product_id", time="transaction_timestamp", event=ConstantEvent(constant="order")),
            None,
        ),
    ],
)  # fmt: skip
def test_real_logs(shared, path, rows, counts, columns, event_map):
    log = read_events(shared / path, columns=columns, event_map=event_map, max_bad_share=0)
    assert (log.rows, log.counts) == (rows, counts)
