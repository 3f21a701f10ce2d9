"""The rows that columns are compared in, against a sort of all hashes."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.data.audit.distinct_sketch import mixed
from lightning_mp.data.audit.row_sample import ROWS, RowSample, SampledColumn, sampled_rows


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 5000, 100_001])
def test_the_rows_are_those_with_the_smallest_hashes(rows):
    hashes = mixed(np.arange(rows, dtype=np.uint64))
    places, theirs = sampled_rows(rows)
    assert places.tolist() == sorted(np.argsort(hashes)[:ROWS].tolist())
    assert np.array_equal(theirs, hashes[places])


def test_a_pass_in_pieces_ends_with_the_same_values():
    rng = np.random.default_rng()
    values = rng.normal(size=20_000)
    chooser, column, other = RowSample(), SampledColumn(), SampledColumn()
    for piece in np.split(np.arange(len(values)), np.sort(rng.integers(0, len(values), 5))):
        if len(piece):
            places, hashes = chooser.choose(int(piece[0]), len(piece))
            column.take(hashes, values[piece[0] + places])
    places, hashes = sampled_rows(len(values))
    other.take(hashes, values[places])
    assert np.array_equal(column.values(), other.values())
