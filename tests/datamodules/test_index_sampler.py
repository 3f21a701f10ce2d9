from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.datamodules.index_sampler import IndexSampler
from lightning_mp.errors import ConfigurationError


def rows_of(sampler):
    return torch.cat(list(sampler)).tolist()


@given(rows=st.integers(1, 200), batch_size=st.integers(1, 40), replicas=st.integers(1, 4), shuffle=st.booleans())
def test_every_row_once_in_batches_of_the_right_size(rows, batch_size, replicas, shuffle):
    if rows < replicas:
        with pytest.raises(ConfigurationError, match=f"{rows} rows do not go round {replicas} processes"):
            IndexSampler(rows, batch_size=batch_size, shuffle=shuffle, num_replicas=replicas)
        return
    samplers = [
        IndexSampler(rows, batch_size=batch_size, shuffle=shuffle, num_replicas=replicas, rank=rank)
        for rank in range(replicas)
    ]
    batches = [[len(batch) for batch in sampler] for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(sizes) for sizes in batches]
    assert len({len(sizes) for sizes in batches}) == 1, "the processes would wait for each other for ever"
    for sizes in batches:
        assert all(size == batch_size for size in sizes[:-1])
        assert sizes[-1] <= batch_size + (1 if shuffle or replicas == 1 else 2)
        assert sizes[-1] > 1 or batch_size == 1 or len(sizes) == 1
    seen = sorted(row for sampler in samplers for row in rows_of(sampler))
    if shuffle:
        assert len(set(seen)) == len(seen) == rows - rows % replicas
    else:
        assert seen == list(range(rows))


def test_the_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        sampler = IndexSampler(500, batch_size=7, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        torch.manual_seed(np.random.default_rng().integers(2**31))
        return rows_of(sampler)

    assert order(3, 1) == order(3, 1)
    assert len({tuple(order(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16


def test_the_epoch_may_be_told_after_the_iterator_was_made():
    late, right = (IndexSampler(100, batch_size=10, shuffle=True) for _ in range(2))
    iterator = iter(late)
    late.set_epoch(5)
    right.set_epoch(5)
    assert torch.cat(list(iterator)).tolist() == rows_of(right)


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    rows_of(IndexSampler(100, batch_size=10, shuffle=True))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_batch_size_below_one():
    with pytest.raises(ConfigurationError, match="`batch_size` must be at least 1, got 0"):
        IndexSampler(3, batch_size=0, shuffle=False)
