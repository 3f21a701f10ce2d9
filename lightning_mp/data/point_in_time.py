"""Features of what happened before each row, computed by DuckDB; the future cannot be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.duckdb_session import duckdb_session
from lightning_mp.data.history import LABEL, History
from lightning_mp.data.point_in_time_sql import EVENTS, history_sql, prior_mean_sql
from lightning_mp.errors import DataError

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointInTime:
    """A history of each row that was asked for.

    Attributes:
        values: (N,) float64; NaN where there is none, as the recency of what never happened.
        sql: The statement that gave them.
        prior_mean: What the training part's mean was, of a history with `prior`.
    """

    values: Float64
    sql: str
    prior_mean: float | None


def point_in_time(
    events: pa.Table,
    histories: Mapping[str, History],
    asked: npt.NDArray[np.int64],
    *,
    train_until: int,
    flags: tuple[str, ...] | None = None,
    memory_limit: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[str, PointInTime]:
    """Compute histories, each by one SQL statement over all events.

    An event counts for a row when its keys are equal and its time lies in `[t - delay - window, t - delay)`; events of
    one time never see each other, and the order of the rows does not matter.

    Args:
        events: `time` (int64 microseconds); `event` (text, null for a row that only asks); the flags; the keys and
            columns that the histories name; `label` (double) where one reads it. Float16 columns are not read.
        histories: What is wanted, by name of the feature.
        asked: (N,) rows of `events`, each once.
        train_until: First time that is no longer training; a prior's mean is that of the events before it.
        flags: Kinds that have a flag column (wide form); `None` for the long form.
        memory_limit: Of DuckDB, such as `400MB`; beyond it it spills to disk.
        progress: Called with one line of text a feature.

    Raises:
        DataError: A prior's mean cannot be told: the training part has no such event.

    Example:
        >>> events = pa.table({"user": [1, 1, 1], "time": [10, 20, 20], "event": ["click", "click", "impression"]})
        >>> made = point_in_time(events, {"clicks": History(of="click", by=("user",))}, np.arange(3), train_until=99)
        >>> made["clicks"].values.tolist()
        [0.0, 1.0, 1.0]
    """
    made: dict[str, PointInTime] = {}
    with duckdb_session(memory_limit=memory_limit) as connection:
        for name, history in histories.items():
            table = _narrow(events, history, asked, flags)
            connection.register(EVENTS, table)
            mean = _prior_mean(connection, name, history, flags, train_until) if history.prior else None
            sql = history_sql(history, flags=flags or (), wide=flags is not None, prior_mean=mean or 0.0)
            made[name] = PointInTime(values=_values(connection, sql, len(asked)), sql=sql, prior_mean=mean)
            connection.unregister(EVENTS)
            if progress:
                progress(f"feature `{name}`: {history.measure} of {history.of} by {', '.join(history.by)}")
    return made


def _narrow(
    events: pa.Table, history: History, asked: npt.NDArray[np.int64], flags: tuple[str, ...] | None
) -> pa.Table:
    """The columns that one statement reads: DuckDB refuses a whole table for one float16 column."""
    kinds = ["event"] if flags is None else ["event", *(k for k in (history.of, history.per) if k in flags)]
    extra = [LABEL] if history.of == LABEL else []
    extra += [] if history.column is None else [history.column]
    names = dict.fromkeys([*history.by, "time", *kinds, *extra])
    # `position` is the place among the rows that are asked for, so that only as many values are kept.
    place = np.full(events.num_rows, -1, dtype=np.int32 if events.num_rows < 2**31 else np.int64)
    place[asked] = np.arange(len(asked), dtype=place.dtype)
    columns = {name: events[name] for name in names}
    return pa.table({**columns, "position": place, "asked": place >= 0})


def _prior_mean(connection: Any, name: str, history: History, flags: tuple[str, ...] | None, until: int) -> float:
    sql = prior_mean_sql(history, until, flags=flags or (), wide=flags is not None)
    mean = pa.table(connection.sql(sql))["mean"][0].as_py()
    if mean is None:
        raise DataError(
            f"feature `{name}`: the training part has no `{history.per or history.of}` to take the prior's mean of",
            "use `prior: 0`, or check `event_map` and the time split",
        )
    return float(mean)


def _values(connection: Any, sql: str, count: int) -> Float64:
    values = np.full(count, np.nan)
    for batch in pa.RecordBatchReader.from_stream(connection.sql(sql)):
        values[batch.column(0).to_numpy()] = batch.column(1).to_numpy(zero_copy_only=False)
    return values
