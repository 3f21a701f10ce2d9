"""Features of what happened before each row, counted in sorted events; the future cannot be seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightning_mp.data.byte_sizes import byte_size
from lightning_mp.data.earlier_events import EarlierEvents
from lightning_mp.data.entity_blocks import entity_blocks
from lightning_mp.data.entity_codes import entity_codes
from lightning_mp.data.event_columns import EventColumns
from lightning_mp.data.history import History
from lightning_mp.data.point_in_time_sql import history_sql
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.errors import DataError

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_BYTES_A_ROW: Final = 64
"""Of the rows that are sorted at once, at most."""
_BYTES_AN_EVENT: Final = 8
"""Of what stands beside them for every event: the number of its keys and its place among the rows asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointInTime:
    """A history of each row that was asked for.

    Attributes:
        values: (N,) float64; NaN where there is none, as the recency of what never happened.
        sql: A statement that gives the same, for a warehouse.
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
    """Compute histories; all that are by the same keys in one pass over the events, sorted by entity and time.

    An event counts for a row when its keys are equal and its time lies in `[t - delay - window, t - delay)`; events of
    one time never see each other, and the order of the rows does not matter.

    Args:
        events: `time` (int64 microseconds); `event` (text, null for a row that only asks); the flags; the keys and
            columns that the histories name; `label` (double) where one reads it. Other columns are not read.
        histories: What is wanted, by name of the feature.
        asked: (N,) rows of `events`, each once.
        train_until: First time that is no longer training; a prior's mean is that of the events before it.
        flags: Kinds that have a flag column (wide form); `None` for the long form.
        memory_limit: Such as `400MB`, of what is sorted at once: with less, the entities take their turns, but the
            events of one are always sorted at once. Beside it stand the values and 8 bytes an event, in nameless files
            where they are more than half the limit, and a byte an event for each kind of event that counts.
        progress: Called with one line of text a feature.

    Raises:
        DataError: A prior's mean cannot be told: the training part has no such event.

    Example:
        >>> events = pa.table({"user": [1, 1, 1], "time": [10, 20, 20], "event": ["click", "click", "impression"]})
        >>> made = point_in_time(events, {"clicks": History(of="click", by=("user",))}, np.arange(3), train_until=99)
        >>> made["clicks"].values.tolist()
        [0.0, 1.0, 1.0]
    """
    limit = None if memory_limit is None else byte_size(memory_limit, name="memory_limit", least=1)
    beside = _BYTES_AN_EVENT * events.num_rows + 8 * len(asked) * len(histories)
    allocate = np.empty if limit is None or beside <= limit // 2 else scratch_array
    time: Int64 = events["time"].to_numpy()
    columns = EventColumns(events, flags)
    # The place among the rows that are asked for, so that only as many values are kept.
    place = allocate(len(time), np.int32 if len(time) < 2**31 else np.int64)
    place.fill(-1)
    for piece in row_pieces(len(asked)):
        place[asked[piece]] = np.arange(piece.start, piece.stop)
    made: dict[str, PointInTime] = {}
    for by in dict.fromkeys(history.by for history in histories.values()):
        alike = {name: history for name, history in histories.items() if history.by == by}
        counted = [_counted(name, history, columns, time, train_until) for name, history in alike.items()]
        values = {name: allocate(len(asked), np.float64) for name in alike}
        codes, size = entity_codes(events, by, allocate=allocate)
        rows_at_once = None if limit is None else max(limit // _BYTES_A_ROW, 1)
        for rows, starts in entity_blocks(codes, size, time, rows_at_once=rows_at_once):
            here = place[rows]
            wanted = np.flatnonzero(here >= 0)
            here = here[wanted]
            block = EarlierEvents(time[rows], starts)
            for one in counted:
                values[one.name][here] = one.of_block(block, rows, wanted)
        for one in counted:
            sql = history_sql(one.history, flags=flags or (), wide=flags is not None, prior_mean=one.prior_mean or 0.0)
            made[one.name] = PointInTime(values=values[one.name], sql=sql, prior_mean=one.prior_mean)
            if progress:
                progress(f"feature `{one.name}`: {one.history.measure} of {one.history.of} by {', '.join(by)}")
    return {name: made[name] for name in histories}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """A history while it is made, and what it reads of each event."""

    name: str
    history: History
    of: Mask
    per: Mask | None
    numbers: Float64 | Int32 | None
    prior_mean: float | None

    def of_block(self, block: EarlierEvents, rows: Int64, wanted: Int64) -> Float64:
        return block.values(
            self.history,
            wanted,
            self.of[rows],
            per=None if self.per is None else self.per[rows],
            numbers=None if self.numbers is None else self.numbers[rows],
            prior_mean=self.prior_mean or 0.0,
        )


def _counted(name: str, history: History, columns: EventColumns, time: Int64, train_until: int) -> _Counted:
    of, numbers = columns.counts(history), columns.numbers(history)
    per = None if history.per is None else columns.kind(history.per)
    mean = None
    if history.prior:
        training = time < train_until
        seen = of & training
        below = np.count_nonzero(seen if per is None else per & training)
        if not below:
            raise DataError(
                f"feature `{name}`: the training part has no `{history.per or history.of}` to take the prior's mean of",
                "use `prior: 0`, or check `event_map` and the time split",
            )
        above = np.count_nonzero(seen) if numbers is None else numbers[seen].sum()
        mean = float(above / below)
    return _Counted(name=name, history=history, of=of, per=per, numbers=numbers, prior_mean=mean)
