"""What a row is labelled with: events that followed it, a number that reached a threshold, or a preference."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from lightning_mp.data.durations import duration_us
from lightning_mp.data.event_kinds import EVENT_KINDS
from lightning_mp.errors import ConfigurationError

WEIGHTS: Final = {"order": 1.0, "cart": 0.5, "click": 0.1, "view": 0.0}
"""A usual choice for shops, not a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLabel:
    """Whether an event happened.

    In the wide form the event's flag is the label of each row. In the long form each row of kind `per` is labelled 1
    when the same user has an event of kind `event` with the same item at its time or up to `within` after it. Where
    negatives are drawn, the rows of kind `event` are labelled 1 and the drawn ones 0.

    Args:
        event: The kind that counts, such as `click`.
        per: Kind of the rows that are labelled (long form); `impression` where the log has any, else `view`.
        within: Length of the window after the row (long form): `30min`, `12h`, `7d`.
        credit: `last`: an event counts for the latest row before it alone (last touch); `all`: for every row in whose
            window it falls.

    Raises:
        ConfigurationError: A kind or a length of time that does not exist, or `per` is `event`.
    """

    event: str
    per: str | None = None
    within: str = "1d"
    credit: Literal["last", "all"] = "last"

    def __post_init__(self) -> None:
        _require_kinds({"label.event": self.event, **({} if self.per is None else {"label.per": self.per})})
        duration_us(self.within, name="label.within")
        if self.credit not in ("last", "all"):
            raise ConfigurationError(f"`label.credit` must be last or all, got {self.credit!r}", "leave it out")
        if self.per == self.event:
            raise ConfigurationError(f"`label.per` and `label.event` are both `{self.event}`", "label another kind")

    @property
    def name(self) -> str:
        """Name of the label column."""
        return self.event

    @property
    def within_us(self) -> int:
        """How far the label looks ahead, in microseconds."""
        return duration_us(self.within, name="label.within")


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksLabel:
    """Whether each of several events happened: a label a task, in the order of a funnel.

    A row is what it is for an `EventLabel`, and is labelled in the same way for each task.

    Args:
        tasks: Kinds that count, such as `[click, cart, order]`.
        per: As for an `EventLabel`.
        within: As for an `EventLabel`, the same for all tasks.
        credit: As for an `EventLabel`.

    Raises:
        ConfigurationError: A kind or a length of time that does not exist, a kind named twice, or `per` among them.
    """

    tasks: tuple[str, ...]
    per: str | None = None
    within: str = "1d"
    credit: Literal["last", "all"] = "last"

    def __post_init__(self) -> None:
        if len(set(self.tasks)) < max(len(self.tasks), 1):
            problem = f"`label.tasks` must name each kind once, got {list(self.tasks)}"
            raise ConfigurationError(problem, "write it as [click, cart, order]")
        _ = self.events

    @property
    def name(self) -> str:
        """Name of the first label column."""
        return self.tasks[0]

    @property
    def events(self) -> tuple[EventLabel, ...]:
        """One label a task."""
        return tuple(EventLabel(event=t, per=self.per, within=self.within, credit=self.credit) for t in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenLabel:
    """What was taken, and nothing else: each event of one kind is a row, and all are labelled 1.

    For modules that draw or find by themselves what was not taken: `RetrievalModule`, `NextItemModule`.

    Args:
        taken: The kind, such as `order`; in the wide form the rows with its flag.

    Raises:
        ConfigurationError: A kind that does not exist.
    """

    taken: str

    def __post_init__(self) -> None:
        _require_kinds({"label.taken": self.taken})

    @property
    def name(self) -> str:
        """Name of the label column."""
        return self.taken


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLabel:
    """Whether a number reached a threshold, such as a rating of 4; rows without the number are not used.

    Args:
        value: Column of the number.
        at_least: Smallest value that is labelled 1.
    """

    value: str
    at_least: float

    @property
    def name(self) -> str:
        """Name of the label column."""
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLabel:
    """How much a user wanted an item, in [0, 1]: what the pair's events weigh, over what becomes 1.

    Args:
        preference: Weight of each kind, from 0 on; kinds that are not named weigh 0.
        rule: `max`: the highest weight of the pair's events, over the highest weight there is. `decayed_sum`: their
            sum, an event counting half when it is `half_life` later than the pair's first; over the 99th percentile of
            the training part's sums above 0, and 1 at most.
        half_life: Of `decayed_sum`.

    Raises:
        ConfigurationError: A kind that does not exist, a negative weight, or none above 0.

    Source:
        The weights order 1, cart 0.5, click 0.1 are a usual choice for shops, not a measurement.
    """

    preference: dict[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    rule: Literal["max", "decayed_sum"] = "max"
    half_life: str = "7d"

    def __post_init__(self) -> None:
        if self.rule not in ("max", "decayed_sum") or duration_us(self.half_life, name="label.half_life") == 0:
            problem = f"`label.rule` is {self.rule!r} with a half-life of {self.half_life}"
            raise ConfigurationError(problem, "use `max`, or `decayed_sum` with a half-life above 0")
        _require_kinds({f"label.preference.{kind}": kind for kind in self.preference})
        wrong = {kind: weight for kind, weight in self.preference.items() if not 0 <= weight < float("inf")}
        if wrong or not any(self.preference.values()):
            problem = f"`label.preference` needs weights from 0 on and one above 0, got {self.preference}"
            raise ConfigurationError(problem, "use {order: 1.0, cart: 0.5, click: 0.1}")

    @property
    def name(self) -> str:
        """Name of the label column."""
        return "preference"


Label: TypeAlias = EventLabel | TasksLabel | TakenLabel | ValueLabel | PreferenceLabel


def _require_kinds(kinds: dict[str, str]) -> None:
    for where, kind in kinds.items():
        if kind not in EVENT_KINDS:
            problem = f"`{where}`: {kind!r} is not a kind of event; there are {', '.join(EVENT_KINDS)}"
            near = get_close_matches(kind, EVENT_KINDS, 1)
            raise ConfigurationError(problem, f"did you mean `{near[0]}`?" if near else "use one of these names")
