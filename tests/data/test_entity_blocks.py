from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.data.entity_blocks import entity_blocks


def checked(codes, size, time, **settings):
    """The blocks, which hold every row once, each entity in one piece, and in that the order of time."""
    blocks = list(entity_blocks(codes, size, time, **settings))
    assert all(starts[0] == 0 and (np.diff(starts) > 0).all() for _, starts in blocks)
    rows = np.concatenate([rows for rows, _ in blocks])
    assert (np.bincount(rows, minlength=len(codes)) == 1).all()
    changes = np.concatenate([[True], codes[rows][1:] != codes[rows][:-1]])
    begun = np.concatenate(
        [starts + end - len(rows) for (rows, starts), end in zip(blocks, _ends(blocks), strict=True)]
    )
    np.testing.assert_array_equal(np.flatnonzero(changes), begun)
    assert len(begun) == len(np.unique(codes))
    assert (changes[1:] | (time[rows][1:] >= time[rows][:-1])).all()
    return blocks


def _ends(blocks):
    return np.cumsum([len(rows) for rows, _ in blocks])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [1, 3, 1000, 2**20, 2**32])
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("rows_at_once", [None, 1, 20_000])
def test_whole_entities_in_the_order_of_time(dtype, size, in_order, rows_at_once):
    generator = np.random.default_rng()
    rows = 150_000
    codes = generator.integers(0, size, rows, dtype=np.uint64).astype(dtype)
    time = generator.integers(-(10**12), 10**12, rows) // 10**9
    if in_order:
        time.sort()
    blocks = checked(codes, size, time, rows_at_once=rows_at_once)
    if size > 1000:
        assert len(blocks) > 1
        assert max(len(block) for block, _ in blocks) < rows / 2


def test_codes_of_64_bits():
    generator = np.random.default_rng()
    codes = generator.choice(generator.integers(0, 2**64, 500, dtype=np.uint64), 20_000)
    checked(codes, 2**64, generator.integers(0, 100, len(codes)))


@pytest.mark.parametrize(("ends", "most"), [((-(2**63), 2**63 - 1), 1), ((0, 2**62 - 1), 4), ((0, 2**40), 1 << 23)])
def test_entities_and_times_fit_in_64_bits(ends, most):
    generator = np.random.default_rng()
    codes = generator.integers(0, 50, 1000).astype(np.uint32)
    time = generator.choice(np.array(ends), 1000)
    time[:2] = ends
    assert max(len(starts) for _, starts in checked(codes, 50, time)) <= most


def test_no_events():
    assert list(entity_blocks(np.zeros(0, dtype=np.uint32), 1, np.zeros(0, dtype=np.int64))) == []
