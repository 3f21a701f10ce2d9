"""What waits together is scored together, and nobody pays for another's rows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from lightning_mp.serve.micro_batching import MicroBatcher
from lightning_mp.serve.request_error import RequestError
from lightning_mp.serve.rows import columns_of_rows
from lightning_mp.serve.scorer import Scorer


class Counting(Scorer):
    """A real scorer that notes the rows of each run."""

    def run(self, columns, rows):
        self.__dict__.setdefault("runs", []).append(rows)
        return super().run(columns, rows)


@pytest.fixture
def scorer(tiny_bundle):
    scorer = Counting.open(tiny_bundle)
    scorer.runs.clear()
    return scorer


def ask(batcher, scorer, rows):
    return batcher.score(columns_of_rows(scorer.inputs, rows), len(rows))


def test_requests_of_one_turn_are_one_run_and_get_their_own_scores(scorer, oracle):
    rng = np.random.default_rng()
    requests = [
        [{"user": str(rng.choice(["u1", "u2"])), "price": float(p)} for p in rng.normal(size=size)]
        for size in rng.integers(1, 6, 20)
    ]

    async def main():
        batcher = MicroBatcher(scorer)
        return await asyncio.gather(*(ask(batcher, scorer, rows) for rows in requests))

    for rows, scores in zip(requests, asyncio.run(main()), strict=True):
        assert scores.logit == pytest.approx([oracle(row) for row in rows], abs=1e-6)
    assert scorer.runs == [sum(map(len, requests))]


def test_a_run_is_bounded_and_a_larger_request_runs_alone(scorer):
    async def main():
        batcher = MicroBatcher(scorer, max_batch_rows=4)
        sizes = (3, 1, 2, 9, 1)
        await asyncio.gather(*(ask(batcher, scorer, [{"user": "u1"}] * size) for size in sizes))

    asyncio.run(main())
    assert scorer.runs == [4, 2, 9, 1]


def test_requests_of_a_bundle_whose_scores_depend_on_their_batch_run_alone(scorer, monkeypatch):
    monkeypatch.setitem(scorer.manifest.precision, "used", "int8-dynamic")

    async def main():
        batcher = MicroBatcher(scorer)
        await asyncio.gather(*(ask(batcher, scorer, [{"user": "u1"}] * size) for size in (3, 1, 1, 2)))

    asyncio.run(main())
    assert scorer.runs == [3, 1, 1, 2]


def test_rows_beyond_the_queue_are_refused_and_the_queue_empties(scorer):
    async def main():
        batcher = MicroBatcher(scorer, max_queued_rows=5)
        requests = [ask(batcher, scorer, [{"user": "u1"}] * 3) for _ in range(3)]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        return answers, await ask(batcher, scorer, [{"user": "u1"}] * 5)

    (first, second, third), later = asyncio.run(main())
    assert len(first.logit) == 3
    assert isinstance(second, RequestError)
    assert isinstance(third, RequestError)
    assert (second.status, second.problem) == (503, "3 rows wait already, 5 may")
    assert len(later.logit) == 5


def test_a_request_without_a_finite_score_does_not_spoil_its_batch(scorer):
    async def main():
        batcher = MicroBatcher(scorer)
        return await asyncio.gather(
            ask(batcher, scorer, [{"user": "u1"}]),
            ask(batcher, scorer, [{"user": "u1"}, {"user": "u1", "price": 1e300}]),
            ask(batcher, scorer, [{"user": "u2"}]),
            return_exceptions=True,
        )

    first, second, third = asyncio.run(main())
    assert len(first.logit) == len(third.logit) == 1
    assert isinstance(second, RequestError)
    assert second.problem.startswith("row 1:")


def test_a_client_that_left_does_not_stop_the_others(scorer):
    async def main():
        batcher = MicroBatcher(scorer)
        leaving = asyncio.create_task(ask(batcher, scorer, [{"user": "u1"}]))
        staying = asyncio.create_task(ask(batcher, scorer, [{"user": "u1"}]))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert len(asyncio.run(main()).logit) == 1
