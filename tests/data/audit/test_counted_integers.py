"""Integers counted once each, against a sort of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.counted_integers import counted_integers
from lightning_mp.data.audit.working_memory import ROWS, WorkingMemory


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("spread", [1, 2, 5, 8, 9, 1000, 60_000])
def test_the_different_ones_and_their_rows_equal_those_of_a_sort(dtype, spread):
    rng = np.random.default_rng()
    memory = WorkingMemory()
    for low in (0, -3, -spread // 2, int(rng.integers(-(2**20), 2**20))):
        numbers = (rng.integers(0, spread, int(rng.integers(1, 2 * ROWS + 9))) + low).astype(dtype)
        integers, counts = counted_integers(numbers, memory)
        expected = np.unique(numbers, return_counts=True)
        assert integers.dtype == dtype
        assert np.array_equal(integers, expected[0])
        assert np.array_equal(counts, expected[1])


def test_far_from_zero_where_neighbours_are_not_one_apart():
    rng = np.random.default_rng()
    for dtype, lowest, step in ((np.float32, 2**25, 4), (np.float32, -(2**26), 8), (np.float64, 2**60, 256)):
        for steps in (1, 2, 50):
            numbers = (rng.integers(0, steps, 3000) * step + lowest).astype(dtype)
            integers, counts = counted_integers(numbers, WorkingMemory())
            expected = np.unique(numbers, return_counts=True)
            assert np.array_equal(integers, expected[0])
            assert np.array_equal(counts, expected[1])
    largest = np.iinfo(np.int64)
    for numbers in (np.array([largest.max, largest.max - 1] * 3), np.array([largest.min, largest.min + 70] * 3)):
        integers, counts = counted_integers(numbers, WorkingMemory())
        assert integers.tolist() == sorted(set(numbers.tolist()))
        assert counts.tolist() == [3, 3]


def test_both_zeros_are_one_without_a_sign():
    for dtype in (np.float32, np.float64):
        integers, counts = counted_integers(np.array([-0.0, 0.0, -0.0, -1.0], dtype=dtype), WorkingMemory())
        assert integers.tolist() == [-1.0, 0.0]
        assert not np.signbit(integers[1])
        assert counts.tolist() == [1, 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [0.5, np.nan, np.inf, -np.inf, 70_000.0, -70_000.0, 1e30])
@pytest.mark.parametrize("spread", [2, 300])
def test_one_other_number_anywhere_is_met(dtype, wrong, spread):
    rng = np.random.default_rng()
    numbers = rng.integers(0, spread, ROWS + 500).astype(dtype)
    numbers[rng.integers(len(numbers))] = wrong
    assert counted_integers(numbers, WorkingMemory()) is None
    assert counted_integers(np.array([wrong, wrong], dtype=dtype), WorkingMemory()) is None or wrong == np.floor(wrong)


def test_integers_of_64_bits_that_lie_far_apart_are_not_counted():
    ends = np.iinfo(np.int64)
    assert counted_integers(np.array([ends.min, ends.max]), WorkingMemory()) is None
    assert counted_integers(np.array([2**62, 2**62 + 70_000]), WorkingMemory()) is None


@given(st.lists(st.floats(-20, 20, width=32).map(lambda x: round(x * 2) / 2), min_size=1, max_size=40))
def test_drawn_halves_are_counted_only_where_all_are_whole(numbers):
    found = counted_integers(np.array(numbers, dtype=np.float32), WorkingMemory())
    if any(x != int(x) for x in numbers):
        assert found is None
    else:
        assert dict(zip(found[0].tolist(), found[1].tolist(), strict=True)) == {x: numbers.count(x) for x in numbers}
