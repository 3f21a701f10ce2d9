"""audit: every column of a table in one streaming pass, judged for float16 or bfloat16."""

from __future__ import annotations

import os
import time as clock
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lightning_mp.data.audit.column_lanes import ColumnLanes
from lightning_mp.data.audit.column_pass import Chosen, ColumnPass
from lightning_mp.data.audit.column_report import ColumnReport, column_report
from lightning_mp.data.audit.label_marks import Marks, label_marks, part_marks, time_limits
from lightning_mp.data.audit.report import Report, assembled
from lightning_mp.data.audit.row_sample import RowSample
from lightning_mp.data.audit.score import FORMAT_OF, Policy
from lightning_mp.data.audit.source import AuditSource, open_source
from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.data.audit.working_memory import WorkingMemory
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.errors import ConfigurationError

GROUP: Final = 64
"""Columns of a pass: with all that is kept of them, they need at most 200 MB."""


def audit(
    source: Any,
    label: str | None = None,
    time: str | None = None,
    policy: Policy = "fp16",
    *,
    thresholds: Thresholds | None = None,
    label_at_least: float | None = None,
    csv: CsvDialect | None = None,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Say what float16 and bfloat16 will do to every column of a table, before anything is trained.

    One streaming pass; memory is bounded whatever the rows: a Parquet file is read column by column, with `label`,
    `time` or from elsewhere in groups of 64 columns. With `time`, that column is read once before.

    Args:
        source: A Parquet, CSV, JSON lines or Arrow IPC file, a feature store, or anything with the Arrow C stream.
        label: Column of numbers or flags; each other column is judged by how well it alone tells it.
        time: Column of times; the first and the last quarter of the rows by time are compared. In a store it is the
            splits that are compared, the first with the last.
        policy: What the numbers are to be cast to: `fp16` or `bf16`. Both are measured; it decides the score.
        thresholds: From where on to speak up.
        label_at_least: From where on the label is given; left out, above 0.
        csv: How a CSV file is written.
        progress: Called with the share done, in [0, 1].

    Returns:
        The report: `.score`, `.findings`, `.columns`, `.to_json()`, `.to_html()`.

    Raises:
        ConfigurationError: A setting cannot work, or names no column.
        DataError: The source cannot be read, or has no rows or no columns.

    Example:
        >>> report = audit(pa.table({"spend": [0.01, 20_000_000.0], "share": [0.25, 0.5]}))
        >>> [(f.code, f.column) for f in report.findings if f.severity == "error"]
        [('MP001', 'spend')]
        >>> report.score
        50.0
    """
    if policy not in FORMAT_OF:
        raise ConfigurationError(f"`policy` must be 'fp16' or 'bf16', got {policy!r}", "leave it out for fp16")
    started = clock.perf_counter()
    opened, limits, tell = open_source(source, csv), thresholds or Thresholds(), progress or _silent
    label_place = None if label is None else opened.place(label, "label")
    time_place = None if time is None else opened.place(time, "time")
    run = _Run(opened, label_place, time_place, label_at_least)
    if time_place is not None:
        run.limits = time_limits(opened, time_place)
    reports: list[ColumnReport] = []
    places = [place for place in range(len(opened.fields)) if place != label_place]
    rows, threads = opened.rows or 0, min(4, os.cpu_count() or 1)
    judge = partial(column_report, thresholds=limits, policy=policy)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        if opened.columns is not None and label is None and time is None:
            reports = ColumnLanes(opened, run.start, judge).reports(places, pool, threads, tell)
        else:
            for start in range(0, len(places), GROUP):
                group = places[start : start + GROUP]
                told = partial(_tell_part, tell, start / len(places), len(group) / len(places))
                passes, rows = run.group(group, pool, told)
                reports += pool.map(judge, group, passes)
                del passes
    if not places and label_place is not None:
        _, rows = run.group([label_place], None, tell)
    report = assembled(
        opened, reports, rows, label=label, time=time, policy=policy, thresholds=limits,
        seconds=clock.perf_counter() - started,
    )  # fmt: skip
    tell(1.0)
    return report


class _Run:
    """What all groups of columns share."""

    def __init__(self, source: AuditSource, label: int | None, time: int | None, label_at_least: float | None) -> None:
        self.source, self.label, self.time, self.label_at_least = source, label, time, label_at_least
        self.limits: tuple[int, int] | None = None
        self.now = clock.time_ns() // 1000
        self._memories: list[WorkingMemory] = []  # one for each thread at work

    @property
    def parts(self) -> bool:
        return self.limits is not None or len(self.source.splits) > 1

    def start(self, place: int) -> ColumnPass:
        """Begin the pass over a column."""
        name, kind = self.source.fields[place]
        return ColumnPass(
            name, kind, label=self.label is not None, parts=self.parts, now=self.now, untyped=self.source.untyped,
            decimal=self.source.decimal,
        )  # fmt: skip

    def group(
        self, places: Sequence[int], pool: ThreadPoolExecutor | None, tell: Callable[[float], None]
    ) -> tuple[list[ColumnPass], int]:
        """Read some columns from beginning to end."""
        source, sample, rows = self.source, RowSample(), 0
        passes = [self.start(place) for place in places]
        wanted = [*places, *(place for place in (self.label, self.time) if place is not None)]
        unique = list(dict.fromkeys(wanted))
        for columns, count, split in _ahead(source.read(unique), pool):
            held = dict(zip(unique, columns, strict=True))
            label = None if self.label is None else label_marks(held[self.label], self.label_at_least, source)
            part = self._part(held, count, split)
            chosen = sample.choose(rows, count)
            work = [(p, held[place], label, part) for p, place in zip(passes, places, strict=True)]
            update = partial(self._update, chosen=chosen)
            if pool is None or len(work) == 1:
                for one in work:
                    update(one)
            else:
                list(pool.map(update, work))
            rows += count
            if source.rows:
                tell(min(1.0, rows / source.rows))
        for one_pass in passes:
            one_pass.finish()
        return passes, rows

    def _update(self, work: tuple[ColumnPass, pa.Array, Marks | None, Marks | None], chosen: Chosen) -> None:
        column_pass, column, label, part = work
        try:
            memory = self._memories.pop()
        except IndexError:
            memory = WorkingMemory()
        column_pass.update(column, label, part, chosen, memory)
        self._memories.append(memory)

    def _part(self, held: dict[int, pa.Array], rows: int, split: str) -> Marks | None:
        if self.limits is not None and self.time is not None:
            return part_marks(held[self.time], self.limits, self.source.fields[self.time][0])
        if len(self.source.splits) > 1:
            mark = {self.source.splits[0]: 0, self.source.splits[-1]: 1}.get(split, -1)
            return np.full(rows, mark, dtype=np.int8)
        return None


def _ahead(batches: Iterator[Any], pool: ThreadPoolExecutor | None) -> Iterator[Any]:
    """The same batches, the next one read while the one at hand is worked on."""
    if pool is None:
        yield from batches
        return
    waiting = pool.submit(next, batches, None)
    while (batch := waiting.result()) is not None:
        waiting = pool.submit(next, batches, None)
        yield batch


def _tell_part(tell: Callable[[float], None], begin: float, length: float, share: float) -> None:
    tell(begin + share * length)


def _silent(_: float) -> None:
    return
