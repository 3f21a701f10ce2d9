"""The sketch of different values against a set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.distinct_sketch import SIZE, DistinctSketch, hashes_of


@given(st.lists(st.floats(width=32, allow_nan=False)), st.integers(0, 50))
def test_few_values_are_counted_exactly_however_they_are_split(numbers, cut):
    values = np.array(numbers, dtype=np.float32)
    one, other = DistinctSketch(), DistinctSketch()
    one.update(hashes_of(values[:cut]))
    other.update(hashes_of(values[cut:]))
    one.merge(other)
    assert one.exact
    assert one.count == len(set(numbers))  # 0.0 == -0.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_many_values_are_estimated_within_four_standard_errors(dtype):
    values = np.random.default_rng(7).permutation(np.repeat(np.arange(300_000), 2)).astype(dtype)
    sketch = DistinctSketch()
    for piece in np.array_split(values, 7):
        sketch.update(hashes_of(piece))
    assert not sketch.exact
    assert sketch.count == pytest.approx(300_000, rel=4 / np.sqrt(SIZE))


def test_integers_beyond_2_to_53_are_told_apart():
    sketch = DistinctSketch()
    sketch.update(hashes_of(np.array([2**53, 2**53 + 1, 2**53])))
    assert sketch.count == 2
