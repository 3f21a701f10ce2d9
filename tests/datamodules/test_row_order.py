from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.datamodules.row_order import RowOrder
from lightning_mp.errors import ConfigurationError

MODES = st.sampled_from(["global", "block", "none"])


def rows_of(order, epoch=0):
    return torch.cat(list(order.batches(epoch))).tolist()


@given(
    rows=st.one_of(st.integers(1, 200), st.integers(8000, 20000)),
    batch_size=st.one_of(st.integers(1, 40), st.sampled_from([999, 4096, 9000])),
    replicas=st.integers(1, 4),
    shuffle=MODES,
    epoch=st.integers(0, 3),
)
def test_every_row_once_in_batches_of_the_right_size(rows, batch_size, replicas, shuffle, epoch):
    if rows < replicas:
        with pytest.raises(ConfigurationError, match=f"{rows} rows do not go round {replicas} processes"):
            RowOrder(rows, batch_size=batch_size, shuffle=shuffle, num_replicas=replicas)
        return
    orders = [
        RowOrder(rows, batch_size=batch_size, shuffle=shuffle, num_replicas=replicas, rank=rank)
        for rank in range(replicas)
    ]
    batches = [[len(batch) for batch in order.batches(epoch)] for order in orders]
    assert [len(order) for order in orders] == [len(sizes) for sizes in batches]
    assert len({len(sizes) for sizes in batches}) == 1, "the processes would wait for each other for ever"
    for sizes in batches:
        assert all(size == batch_size for size in sizes[:-1])
        assert sizes[-1] <= batch_size + (1 if shuffle != "none" or replicas == 1 else 2)
        assert sizes[-1] > 1 or batch_size == 1 or len(sizes) == 1
    seen = sorted(row for order in orders for row in rows_of(order, epoch))
    if shuffle == "none":
        assert seen == list(range(rows))
    else:
        assert len(set(seen)) == len(seen) == rows - rows % replicas


@given(rows=st.integers(2, 20000), batch_size=st.sampled_from([1, 16, 1000, 4096]), shuffle=MODES, data=st.data())
def test_an_order_begins_anywhere(rows, batch_size, shuffle, data):
    order = RowOrder(rows, batch_size=max(batch_size, rows // 50 + 1), shuffle=shuffle, seed=5)
    start = data.draw(st.integers(0, len(order)))
    whole = list(order.batches(1))
    rest = list(order.batches(1, start))
    assert len(rest) == len(whole) - start
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(rest, whole[start:], strict=True))


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_the_order_is_a_function_of_seed_and_epoch(shuffle):
    def order(seed, epoch):
        torch.manual_seed(np.random.default_rng().integers(2**31))
        return rows_of(RowOrder(500, batch_size=7, shuffle=shuffle, seed=seed), epoch)

    assert order(3, 1) == order(3, 1)
    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_the_global_generator_is_left_alone(shuffle):
    before = torch.random.get_rng_state()
    rows_of(RowOrder(10000, batch_size=10, shuffle=shuffle))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_chunk_gathers_the_rows_it_names():
    matrix = torch.randn(5000, 3)
    for shuffle in ("global", "block", "none"):
        for replicas in (1, 3):
            order = RowOrder(5000, batch_size=130, shuffle=shuffle, num_replicas=replicas, rank=replicas - 1)
            for chunk in order.chunks(epoch=1, start=3):
                assert torch.equal(chunk.gather(matrix), matrix[chunk.rows()])
                assert len(chunk.rows()) == sum(chunk.sizes)


def test_block_mode_reads_runs_of_neighbours():
    rows = torch.cat(list(RowOrder(100_000, batch_size=1000, shuffle="block").batches(0)))
    assert 0.95 < float((rows.diff() == 1).float().mean()) < 0.999
    other = torch.cat(list(RowOrder(100_000, batch_size=1000, shuffle="block").batches(1)))
    assert not torch.equal(rows.sort().indices // 128, other.sort().indices // 128)


@pytest.mark.parametrize("shuffle", ["global", "block"])
def test_batches_of_shuffled_rows_are_as_mixed_as_independent_draws(shuffle):
    # A column that drifts with time, in the order a store is written in: shuffled once.
    draw = np.random.default_rng()
    rows, batch_size = 400_000, 4096
    drift = torch.tensor(draw.permutation(np.linspace(0, 1, rows) + draw.normal(scale=0.05, size=rows)))
    order = RowOrder(rows, batch_size=batch_size, shuffle=shuffle, seed=int(draw.integers(1000)))
    means = [drift[batch].mean() for epoch in range(8) for batch in order.batches(epoch) if len(batch) == batch_size]
    ratio = torch.stack(means).var() / (drift.var() / batch_size)
    assert ratio < 1.25  # 776 means: the ratio of independent draws is below 1.2 in 999 of 1000 runs


def test_arguments_are_checked():
    with pytest.raises(ConfigurationError, match="`batch_size` must be at least 1, got 0"):
        RowOrder(3, batch_size=0)
    with pytest.raises(ConfigurationError, match="`shuffle` must be 'global', 'block' or 'none', got 'random'"):
        RowOrder(3, batch_size=1, shuffle="random")
