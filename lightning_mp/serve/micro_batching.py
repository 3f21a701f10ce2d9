"""MicroBatcher: requests that wait in the event loop together are scored in one run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.scorer import Scorer, Scores


@dataclass(slots=True)
class _Waiting:
    columns: Mapping[str, Sequence[Any]]
    rows: int
    answer: asyncio.Future[Scores]


class MicroBatcher:
    """Scores what arrived in one turn of the event loop in one run, without a timer.

    The first request of a turn asks the loop to score on its next turn; whatever arrives until then joins. An
    idle server therefore answers at once, and a busy one batches as much as its load makes it.

    Args:
        scorer: What scores.
        max_batch_rows: Rows of one run; a larger request runs alone. For a bundle whose scores depend on the other rows
            of a batch (int8) it is 1 whatever is said here: each request runs alone.
        max_queued_rows: Rows that may wait; a request beyond them is refused with status 503.
    """

    def __init__(self, scorer: Scorer, *, max_batch_rows: int = 1024, max_queued_rows: int = 16384) -> None:
        self._scorer = scorer
        self._max_batch_rows = 1 if scorer.batch_dependent else max_batch_rows
        self._max_queued_rows = max_queued_rows
        self._queue: deque[_Waiting] = deque()
        self._queued_rows = 0

    async def score(self, columns: Mapping[str, Sequence[Any]], rows: int) -> Scores:
        """Score checked columns together with whatever else waits.

        Raises:
            RequestError: Too many rows wait already (503), or a score is not finite (422).
        """
        if self._queued_rows and self._queued_rows + rows > self._max_queued_rows:
            raise RequestError(
                f"{self._queued_rows:,} rows wait already, {self._max_queued_rows:,} may", "try again", status=503
            )
        loop = asyncio.get_running_loop()
        waiting = _Waiting(columns, rows, loop.create_future())
        if not self._queue:
            loop.call_soon(self._flush)
        self._queue.append(waiting)
        self._queued_rows += rows
        return await waiting.answer

    def _flush(self) -> None:
        batch, rows = [self._queue.popleft()], 0
        rows = batch[0].rows
        while self._queue and rows + self._queue[0].rows <= self._max_batch_rows:
            batch.append(self._queue.popleft())
            rows += batch[-1].rows
        self._queued_rows -= rows
        if self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        if len(batch) > 1:
            joined = {name: [v for one in batch for v in one.columns[name]] for name in batch[0].columns}
            try:
                scores = self._scorer.run(joined, rows)
            except Exception:  # noqa: S110 - whose rows it is shows when each request runs alone, below
                pass
            else:
                start = 0
                for one in batch:
                    _give(one, scores[start : start + one.rows])
                    start += one.rows
                return
        for one in batch:
            try:
                _give(one, self._scorer.run(one.columns, one.rows))
            except Exception as error:
                if not one.answer.done():
                    one.answer.set_exception(error)


def _give(waiting: _Waiting, scores: Scores) -> None:
    if not waiting.answer.done():  # its client may have left
        waiting.answer.set_result(scores)
