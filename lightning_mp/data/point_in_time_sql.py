"""The SQL of a history: one statement, its window written as integer microseconds, for any engine.

`point_in_time` counts without it; a warehouse that runs it gives a service the same values.
"""

from __future__ import annotations

from collections.abc import Container

from lightning_mp.data.history import LABEL, History

EVENTS = "events"
"""Name of the table that the statement reads."""
_PACKED = 2**32
"""Two counts ride in one sum, which halves the work: one below this number, the other in multiples of it."""


def history_sql(history: History, *, flags: Container[str] = (), wide: bool = False, prior_mean: float = 0.0) -> str:
    r"""One SQL statement that gives `position` and `value` of every row that is asked for.

    It reads a table `events`: `position`, `asked`, `time` (int64 microseconds), the keys, and the kind of each event,
    as `event` (text) or as one flag column a kind. A row that is no event has null there.

    Args:
        history: What is wanted.
        flags: Kinds that have a flag column.
        wide: Whether there are flag columns; each event is an impression then, too.
        prior_mean: Mean of the training part, for `prior`.

    Example:
        >>> print(history_sql(History(of="click", by=("user",), window="1h")))
        SELECT "position", coalesce("above", 0)::DOUBLE AS "value" FROM (
          SELECT "position", "asked",
            sum(CASE WHEN "event" = 'click' THEN 1 ELSE 0 END) OVER (
              PARTITION BY "user" ORDER BY "time" RANGE BETWEEN 3600000000 PRECEDING AND 1 PRECEDING) AS "above"
          FROM events
        ) WHERE "asked"
    """
    above, below, value = _parts(history, flags, wide, prior_mean)
    over = f"OVER (\n      {_frame(history)})"
    columns = ['"position"', '"asked"']
    inner = [f'    {above} {over} AS "above"'] + ([f'    {below} {over} AS "below"'] if below else [])
    if history.measure == "recency":
        columns.append('"time"')
    return "\n".join([  # every name in it is quoted
        f'SELECT "position", {value}::DOUBLE AS "value" FROM (',  # noqa: S608  # every name in it is quoted, every number is our own
        f"  SELECT {', '.join(columns)},",
        ",\n".join(inner),
        f"  FROM {EVENTS}",
        ') WHERE "asked"',
    ])  # fmt: skip


def quoted(name: str) -> str:
    """An SQL identifier, whatever it holds.

    Example:
        >>> quoted('a"b')
        '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def condition(kind: str, flags: Container[str], wide: bool) -> str:
    """Whether a row is an event of that kind, as SQL.

    Args:
        kind: A kind of event, or `label`.
        flags: Kinds that have a flag column.
        wide: Whether there are flag columns.
    """
    if kind == LABEL:
        return f"{quoted(LABEL)} IS NOT NULL"
    if not wide:
        return f"\"event\" = '{kind}'"
    return quoted(kind) if kind in flags else '"event" IS NOT NULL'


def _parts(history: History, flags: Container[str], wide: bool, prior_mean: float) -> tuple[str, str | None, str]:
    """What is summed above and below the line, and what is made of the two; sums over no row are null."""
    is_event = condition(history.of, flags, wide)
    column = quoted(history.column or LABEL)
    ones = f"sum(CASE WHEN {is_event} THEN 1 ELSE 0 END)"
    if history.measure == "count":
        return ones, None, 'coalesce("above", 0)'
    if history.measure == "sum":
        return f"sum(CASE WHEN {is_event} THEN {column} END)", None, 'coalesce("above", 0)'
    if history.measure == "distinct":
        return f"count(DISTINCT CASE WHEN {is_event} THEN {column} END)", None, 'coalesce("above", 0)'
    if history.measure == "recency":
        return f'max(CASE WHEN {is_event} THEN "time" END)', None, '("time" - "above") / 1000000.0'
    if history.measure == "rate" and history.of != LABEL:
        per = condition(history.per or "", flags, wide)
        both = f"sum(CASE WHEN {is_event} THEN 1 ELSE 0 END + CASE WHEN {per} THEN {_PACKED} ELSE 0 END)"
        packed = 'coalesce("above", 0)::BIGINT'
        return both, None, _ratio(f"({packed} % {_PACKED})", f"({packed} // {_PACKED})", history.prior, prior_mean)
    given = f"CASE WHEN {is_event} THEN {column} END"
    ratio = _ratio('coalesce("above", 0)', 'coalesce("below", 0)', history.prior, prior_mean)
    return f"sum({given})", f"count({given})", ratio


def _ratio(above: str, below: str, prior: float, mean: float) -> str:
    if not prior:
        return f"{above}::DOUBLE / nullif({below}, 0)"
    return f"({above}::DOUBLE + {float(prior * mean)!r}) / ({below} + {float(prior)!r})"


def _frame(history: History) -> str:
    keys = ", ".join(quoted(name) for name in history.by)
    start = "UNBOUNDED" if history.window_us is None else str(history.delay_us + history.window_us)
    # RANGE bounds are inclusive and times whole microseconds: the last that is seen is one before `t - delay`.
    bounds = f"RANGE BETWEEN {start} PRECEDING AND {history.delay_us + 1} PRECEDING"
    return f'PARTITION BY {keys} ORDER BY "time" {bounds}'
