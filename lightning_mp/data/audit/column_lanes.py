"""Columns audited one by one: a thread reads a column from beginning to end, judges it, and takes the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue
from threading import Event

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.column_pass import ColumnPass
from lightning_mp.data.audit.column_report import ColumnReport
from lightning_mp.data.audit.row_sample import sampled_rows
from lightning_mp.data.audit.source import AuditSource
from lightning_mp.data.audit.working_memory import WorkingMemory

_TOLD_EVERY = 0.1


class ColumnLanes:
    """Audits the columns of a source that can give each alone: a thread holds one piece of one column at a time.

    Args:
        source: With `columns` and `rows`.
        start: Begins the pass over the column at a place.
        judge: Ends it.
    """

    def __init__(
        self, source: AuditSource, start: Callable[[int], ColumnPass], judge: Callable[[int, ColumnPass], ColumnReport]
    ) -> None:
        self._source, self._start, self._judge = source, start, judge
        self._places: SimpleQueue[int] = SimpleQueue()
        self._reports: dict[int, ColumnReport] = {}
        self._read: list[int] = []
        self._stopped = Event()

    def reports(
        self, places: Sequence[int], pool: ThreadPoolExecutor, threads: int, tell: Callable[[float], None]
    ) -> list[ColumnReport]:
        """The reports of some columns, in the same order.

        Args:
            places: Of the columns.
            pool: To work in.
            threads: At most.
            tell: Called from this thread with the share done.
        """
        assert self._source.rows is not None
        sample = sampled_rows(self._source.rows)
        for place in places:
            self._places.put(place)
        self._read = [0] * threads
        total = max(1, self._source.rows * len(places))
        lanes = [pool.submit(self._lane, number, *sample) for number in range(threads)]
        try:
            while True:
                ended = wait(lanes, _TOLD_EVERY, FIRST_EXCEPTION)
                if not ended.not_done or any(lane.exception() for lane in ended.done):
                    break
                tell(min(1.0, sum(self._read) / total))
        finally:
            self._stopped.set()  # also where the user stops it, or one of the lanes has failed
        for lane in lanes:
            lane.result()
        return [self._reports[place] for place in places]

    def _lane(self, number: int, rows: npt.NDArray[np.intp], hashes: npt.NDArray[np.uint64]) -> None:
        assert self._source.columns is not None
        memory = WorkingMemory()
        with self._source.columns() as read:
            while not self._stopped.is_set():
                try:
                    place = self._places.get_nowait()
                except Empty:
                    return
                column_pass, first = self._start(place), 0
                for column in read(place):
                    low, high = np.searchsorted(rows, (first, first + len(column)))
                    chosen = rows[low:high] - first, hashes[low:high]
                    column_pass.update(column, None, None, chosen, memory)
                    first += len(column)
                    self._read[number] += len(column)
                    if self._stopped.is_set():
                        return
                column_pass.finish()
                self._reports[place] = self._judge(place, column_pass)
