"""One point in time: ISO text to int64 UTC microseconds and back."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np


def to_microseconds(text: str, time_zone: str | None = None) -> int:
    """UTC microseconds of an ISO date or time.

    Args:
        text: An ISO date or time.
        time_zone: IANA name of the zone of a text without an offset; UTC when left out.

    Raises:
        ValueError: It is not an ISO date or time.

    Example:
        >>> to_microseconds("1970-01-02"), to_microseconds("1970-01-01T01:00:00+01:00")
        (86400000000, 0)
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(time_zone) if time_zone else UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def to_iso(microseconds: int) -> str:
    """UTC microseconds as ISO text, to the second.

    Example:
        >>> to_iso(1_509_494_400_000_000)
        '2017-11-01T00:00:00Z'
    """
    return str(np.datetime64(microseconds, "us").astype("datetime64[s]")) + "Z"
