"""History: a feature made of the events before a row, as a recipe declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict, get_args

from lightning_mp.data.durations import duration_us
from lightning_mp.data.event_kinds import EVENT_KINDS
from lightning_mp.errors import ConfigurationError

Measure = Literal["count", "rate", "sum", "mean", "recency", "distinct"]
LABEL = "label"
"""As `of`: the label of the rows that have one, instead of a kind of event."""
ALL_TIME = "all"
_OF_A_COLUMN = ("sum", "mean", "distinct")

HistorySettings = TypedDict(
    "HistorySettings",
    {
        "of": str,
        "by": list[str],
        "as": NotRequired[Measure],
        "per": NotRequired[str],
        "column": NotRequired[str],
        "window": NotRequired[str],
        "delay": NotRequired[str],
        "prior": NotRequired[float],
    },
)
"""How a recipe writes a `History`: its arguments, with `as` for `measure`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened before a row: events with the same keys, over `[t - delay - window, t - delay)`.

    An event of the row's own time is never seen, nor the row itself. A missing key is a key like any other.

    Args:
        of: The kind of event that is counted (`impression`, `view`, `click`, `cart`, `order`), or `label`: the rows'
            own label, of a log whose label is a value.
        by: Columns that must be equal: `user`, `item`, `session`, and columns of the log or of an attribute table.
        measure: `count` of the events; `rate`: their count over that of the `per` events; `sum`, `mean` or number of
            `distinct` values of `column` over them; `recency`: seconds since the last of them.
        per: Kind of event that a `rate` is taken over.
        column: What `sum`, `mean` and `distinct` read.
        window: Such as `1h`, `7d`, `90d`, or `all`.
        delay: Time until an event may be known to the service that will ask for scores.
        prior: Of a `rate` or a `mean`: how many events the mean of the training part counts for.

    Raises:
        ConfigurationError: Settings that do not go together.

    Example:
        >>> ctr = History.from_settings("ctr_7d", {"of": "click", "per": "impression", "by": ["user", "category"],
        ...                                        "window": "7d", "as": "rate", "prior": 20})
        >>> ctr.measure, ctr.window_us
        ('rate', 604800000000)
    """

    of: str
    by: tuple[str, ...]
    measure: Measure = "count"
    per: str | None = None
    column: str | None = None
    window: str = ALL_TIME
    delay: str = "0s"
    prior: float = 0.0

    def __post_init__(self) -> None:
        duration_us(self.delay, name="history.delay")
        window = self.window_us
        rate, of_label = self.measure == "rate", self.of == LABEL
        of_column = self.measure in _OF_A_COLUMN and not (of_label and self.measure != "distinct")
        faults = {
            f"`of` must be one of {', '.join(EVENT_KINDS)} or {LABEL}": self.of not in (*EVENT_KINDS, LABEL),
            f"`as` must be one of {', '.join(get_args(Measure))}": self.measure not in get_args(Measure),
            "`by` names no column": not self.by,
            "`by` names a column twice": len(set(self.by)) < len(self.by),
            "`window` must be longer than 0": window == 0,
            "`as: rate` needs `per`, the kind of event it is taken over": rate and self.per is None and not of_label,
            "`per` is for `as: rate` of a kind of event": self.per is not None and (not rate or of_label),
            f"`per` must be one of {', '.join(EVENT_KINDS)}": self.per is not None and self.per not in EVENT_KINDS,
            f"`as: {self.measure}` needs `column`": of_column and self.column is None,
            f"`as: {self.measure}` of {self.of} reads no `column`": not of_column and self.column is not None,
            "`prior` is for `as: rate` and `as: mean`": self.prior != 0 and self.measure not in ("rate", "mean"),
            "`prior` must be a number from 0 on": not 0 <= self.prior < float("inf"),
        }
        for fault, found in faults.items():
            if found:
                raise ConfigurationError(f"`history`: {fault}", "change its entry in `features`")

    @classmethod
    def from_settings(cls, name: str, settings: HistorySettings) -> History:
        """Read a recipe's entry.

        Args:
            name: Of the feature, for errors.
            settings: The entry.
        """
        known = set(HistorySettings.__annotations__)
        unknown = sorted(set(settings) - known)
        missing = sorted({"of", "by"} - set(settings))
        if unknown or missing:
            fault = f"has no setting `{unknown[0]}`" if unknown else f"lacks `{missing[0]}`"
            raise ConfigurationError(f"feature `{name}`: `history` {fault}", f"it knows {', '.join(sorted(known))}")
        rest = {key: value for key, value in settings.items() if key not in ("as", "by", "of")}
        try:
            return cls(of=settings["of"], by=tuple(settings["by"]), measure=settings.get("as", "count"), **rest)  # type: ignore[arg-type]  # a recipe's values were checked when it was read
        except ConfigurationError as error:
            raise ConfigurationError(f"feature `{name}`: {error.problem}", error.hint) from error

    @property
    def window_us(self) -> int | None:
        """Length of the window in microseconds; `None` for all time."""
        return None if self.window == ALL_TIME else duration_us(self.window, name="history.window")

    @property
    def delay_us(self) -> int:
        """The delay in microseconds."""
        return duration_us(self.delay, name="history.delay")
