"""The wall clock of zones against zoneinfo, minute by minute round every change of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from lightning_mp.data.zone_clock import ZoneClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca", "UTC"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("year", [1995, 2026, 2050])
def test_every_half_hour_of_a_year(zone, year):
    start = int((datetime(year, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
    utc = (start + np.arange(0, 366 * 86_400, 1_800)) * 1_000_000
    clock, info = ZoneClock(zone, utc), ZoneInfo(zone)
    expected = [(EPOCH + timedelta(microseconds=t)).astimezone(info).replace(tzinfo=UTC) - EPOCH for t in utc.tolist()]
    local = clock.local(utc)
    assert local.tolist() == [e // timedelta(microseconds=1) for e in expected]
    instants, twice, never = clock.utc(local)
    assert not never.any()
    assert (instants[~twice] == utc[~twice]).all()
    values, counts = np.unique(local, return_counts=True)
    assert set(local[twice].tolist()) == set(values[counts > 1].tolist())
    gaps = np.setdiff1d(np.arange(local[0], local[-1], 1_800_000_000), local)
    assert clock.utc(gaps)[2].all()


def test_far_apart_and_impossible_years():
    times = np.array([-62_000_000_000_000_000, 0, 250_000_000_000_000_000])
    assert (np.abs(ZoneClock("Europe/Berlin", times).local(times) - times) <= 7_200_000_000).all()


def test_no_such_zone():
    with pytest.raises(KeyError):
        ZoneClock("Mars/Olympus", np.array([0]))
