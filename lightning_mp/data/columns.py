"""Columns: where an event log keeps the user, the item, the time and the kind of event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from lightning_mp.data.event_kinds import EVENT_KINDS
from lightning_mp.errors import ConfigurationError

KeyType = Literal["auto", "string", "int64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantEvent:
    """Every row of the log is one kind of event.

    Args:
        constant: The kind: `impression`, `view`, `click`, `cart` or `order`.
    """

    constant: str

    def __post_init__(self) -> None:
        _known(self.constant, "columns.event.constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFlags:
    """Every row of the log is an impression, and flag columns say what came of it (the wide form).

    Args:
        flags: Column of each kind: `{"click": "clicked", "order": "bought"}`; 0 or 1, true or false.
    """

    flags: dict[str, str]

    def __post_init__(self) -> None:
        if not self.flags:
            raise ConfigurationError("`columns.event.flags` names no column", "write it as {click: clicked}")
        for kind in self.flags:
            _known(kind, "columns.event.flags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Where an event log keeps what every log has; names are those of the file.

    Args:
        user: Column of the user's key.
        item: Column of the item's key.
        time: Column of the time: ISO text, epoch numbers, or a timestamp.
        event: Column of the kind of event (long form), `{constant: order}` for a log of one kind, or
            `{flags: {click: clicked}}` for a log of impressions with flags (wide form).
        value: Column of a number that belongs to the event, such as a rating.
        user_type: `"string"` keeps the key as it is written, so that `007` and `7` are two users; `"int64"` reads
            it as an integer. `"auto"`: the type of the file where it has one, text in a CSV.
        item_type: The same for items.
        time_zone: IANA name, such as `Europe/Berlin`, of times that are written without a zone; without it such a
            row is rejected. Times that happen twice or never in that zone are rejected too. Calendar features (hour,
            weekday) are told in this zone, in UTC without one.
        earliest: ISO date; a row before it is rejected (an epoch of zero or in the wrong unit ends up there).
        latest: ISO date; a row from it on is rejected.

    Raises:
        ConfigurationError: A kind of event, zone or date that does not exist.

    Example:
        >>> Columns(user="user_id", item="product_id", time="event_time", event="event_type").source_columns()["item"]
        'product_id'
    """

    user: str
    item: str
    time: str
    event: str | ConstantEvent | EventFlags
    value: str | None = None
    user_type: KeyType = "auto"
    item_type: KeyType = "auto"
    time_zone: str | None = None
    earliest: str = "1990-01-01"
    latest: str = "2100-01-01"

    def __post_init__(self) -> None:
        if self.time_zone is not None:
            try:
                ZoneInfo(self.time_zone)
            except (ValueError, OSError, KeyError) as error:
                problem = f"`columns.time_zone`: there is no time zone {self.time_zone!r}"
                names = sorted(available_timezones())
                near = get_close_matches(self.time_zone, names, 1) or [
                    name for name in names if name.rpartition("/")[2] == self.time_zone
                ]
                hint = f"did you mean `{near[0]}`?" if near else "give its IANA name, such as Europe/Berlin or UTC"
                raise ConfigurationError(problem, hint) from error
        for name, text in (("earliest", self.earliest), ("latest", self.latest)):
            try:
                datetime.fromisoformat(text)
            except ValueError as error:
                problem = f"`columns.{name}` must be an ISO date, got {text!r}"
                raise ConfigurationError(problem, "write it as 1990-01-01") from error

    def source_columns(self) -> dict[str, str]:
        """The file's column of each role: `user`, `item`, `time`, `event` (long form) or the flags' kinds, `value`."""
        return dict(self._pairs())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        yield from (("user", self.user), ("item", self.item), ("time", self.time))
        if isinstance(self.event, str):
            yield "event", self.event
        if isinstance(self.event, EventFlags):
            yield from self.event.flags.items()
        if self.value is not None:
            yield "value", self.value


def _known(kind: str, where: str) -> None:
    if kind not in EVENT_KINDS:
        near = get_close_matches(kind, EVENT_KINDS, 1)
        problem = f"`{where}`: {kind!r} is not a kind of event; there are {', '.join(EVENT_KINDS)}"
        raise ConfigurationError(problem, f"did you mean `{near[0]}`?" if near else "use one of these names")
