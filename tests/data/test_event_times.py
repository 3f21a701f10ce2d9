"""Times against datetime and zoneinfo, one by one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_mp.data.event_times import NO_ZONE, event_times
from lightning_mp.data.iso_time import to_iso, to_microseconds
from lightning_mp.errors import DataError

# ruff: noqa: DTZ001  wall-clock times are what is tested
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2099, 12, 31))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def read(values, **options):
    times = event_times(values if isinstance(values, pa.Array) else pa.array(values), column="when", **options)
    wrong = {row: reason for reason, mask in times.wrong.items() for row in mask.nonzero()[0].tolist()}
    return times, wrong


@given(st.lists(st.tuples(MOMENTS, st.integers(-14 * 60, 14 * 60), st.sampled_from("zuoOfFsen")), min_size=1))
def test_every_way_of_writing_an_instant(rows):
    texts, expected = [], []
    for naive, minutes, way in rows:
        moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
        utc = moment.astimezone(UTC)
        since = microseconds(moment)
        text = {
            "z": utc.replace(tzinfo=None).isoformat() + "Z",
            "u": str(utc.replace(tzinfo=None)) + " UTC",
            "o": moment.isoformat(),
            "O": moment.isoformat(" ").replace(":", "", 0),
            "f": f"{naive:%Y-%m-%dT%H:%M:%S}.{naive.microsecond:06d}789{moment:%z}",
            "F": f"{naive:%Y-%m-%d %H:%M:%S}.{naive.microsecond:06d} {moment:%z}",
            "s": str(since // 1_000_000),
            "e": str(since // 1_000),
            "n": str(since * 1_000),
        }[way]
        texts.append(text)
        expected.append(since // 1_000_000 * 1_000_000 if way == "s" else since // 1000 * 1000 if way == "e" else since)
    # Epochs before 1973-03 in milliseconds would count as seconds; the moments here start in 1990.
    times, wrong = read(texts)
    assert wrong == {}
    assert times.microseconds.tolist() == expected
    assert sum(times.formats.values()) == len(rows)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(MOMENTS, min_size=1, max_size=8),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
)
def test_local_times_against_zoneinfo(moments, zone):
    moments = [*moments, datetime(2026, 10, 25, 2, 30), datetime(2026, 3, 29, 2, 30), datetime(2026, 3, 8, 2, 30)]
    info = ZoneInfo(zone)
    times, wrong = read([moment.isoformat(" ") for moment in moments], time_zone=zone)
    stamps, stamped_wrong = read(pa.array(moments, pa.timestamp("us")), time_zone=zone)
    named, named_wrong = read([f"{moment.isoformat()} {zone}" for moment in moments])
    assert wrong == stamped_wrong == named_wrong
    assert times.microseconds.tolist() == stamps.microseconds.tolist() == named.microseconds.tolist()
    for row, moment in enumerate(moments):
        first, second = (moment.replace(tzinfo=info, fold=fold).astimezone(UTC) for fold in (0, 1))
        exists = first.astimezone(info).replace(tzinfo=None) == moment
        if not exists:
            assert wrong[row] == f"does not exist in {zone}: the clocks went forward"
        elif first != second:
            assert wrong[row] == f"happens twice in {zone}: the clocks went back"
        else:
            assert row not in wrong
            assert times.microseconds[row] == microseconds(first)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-03-01 10:00:00", NO_ZONE),
        ("2026-03-01", NO_ZONE),
        ("2026-02-30T10:00:00Z", "is a day or an hour that does not exist"),
        ("2026-03-01T25:00:00Z", "is a day or an hour that does not exist"),
        ("03/01/2026 10:00", "is not a time (ISO text or an epoch)"),
        ("yesterday", "is not a time (ISO text or an epoch)"),
        ("", "is not a time (ISO text or an epoch)"),
        ("2026-03-01 10:00:00 Mars/Olympus", "is in the zone Mars/Olympus, which does not exist"),
        ("99999999999999999999", "is no epoch in any unit"),
        ("9" * 400, "is no epoch in any unit"),
    ],
)
def test_what_is_no_time_is_told_and_its_neighbours_are_kept(text, reason):
    times, wrong = read(["2026-03-01T10:00:00Z", text, "1772359200", None])
    assert wrong == {1: reason}
    assert times.missing.tolist() == [False, False, False, True]
    assert times.microseconds[[0, 2]].tolist() == [1772359200000000] * 2


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1772359200, None]),
        pa.array([1772359200000, None]),
        pa.array([1772359200000000, None]),
        pa.array([1772359200000000999, None]),
        pa.array([1772359200, None], pa.uint32()),
        pa.array([1772359200.0, np.nan]),
        pa.array([1772359200000.0, None]),
        pa.array(["2026-03-01T10:00:00Z", None]).dictionary_encode(),
        pa.array(["2026-03-01T10:00Z", None], pa.large_string()),
        pa.array([datetime(2026, 3, 1, 10, tzinfo=UTC), None], pa.timestamp("ns", tz="UTC")),
        pa.array([datetime(2026, 3, 1, 10, tzinfo=UTC), None], pa.timestamp("s", tz="Europe/Berlin")),
    ],
)
def test_types(values):
    times, wrong = read(values)
    assert times.microseconds.tolist() == [1772359200000000, 0]
    assert (times.missing.tolist(), wrong) == ([False, True], {})


def test_dates_are_midnight_in_the_declared_zone():
    times, _ = read(pa.array([date(2026, 7, 1)]), time_zone="Europe/Berlin")
    assert to_iso(int(times.microseconds[0])) == "2026-06-30T22:00:00Z"


def test_a_timestamp_without_a_zone_needs_one():
    with pytest.raises(DataError) as caught:
        read(pa.array([datetime(2026, 3, 1)]))
    assert caught.value.problem == "column `when` holds timestamp[us] without a time zone, and none is declared"
    assert "columns.time_zone" in caught.value.hint


def test_a_column_of_no_times():
    with pytest.raises(DataError, match="column `when` holds bool, which is no time"):
        read(pa.array([True]))


def test_fractions_of_an_epoch():
    assert read(["1772359200.25"])[0].microseconds.tolist() == [1772359200250000]
    assert read(pa.array([1772359200.25]))[0].microseconds.tolist() == [1772359200250000]


def test_iso_time():
    assert to_microseconds("2026-07-01", "Europe/Berlin") == to_microseconds(
        "2026-06-30T22:00:00Z".replace("Z", "+00:00")
    )
    assert to_iso(to_microseconds("1969-12-31")) == "1969-12-31T00:00:00Z"
