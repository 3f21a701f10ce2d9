from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.baselines.interaction_matrix import interaction_matrix
from lightning_mp.errors import ConfigurationError, DataError


def test_a_cell_is_the_sum_of_its_rows():
    rng = np.random.default_rng()
    user, item, weight = rng.integers(7, size=300), rng.integers(11, size=300), rng.uniform(size=300)
    expected, counts = np.zeros((9, 12)), np.zeros((9, 12))
    np.add.at(expected, (user, item), weight)
    np.add.at(counts, (user, item), 1)
    np.testing.assert_allclose(
        interaction_matrix(user, item, users=9, items=12, weight=weight).toarray(), expected, atol=1e-12
    )
    matrix = interaction_matrix(user, item, users=9, items=12)
    assert (matrix.toarray() == counts).all()
    assert matrix.has_canonical_format
    assert matrix.nnz == (counts > 0).sum()


def test_nothing_gives_an_empty_matrix():
    assert interaction_matrix([], [], users=3, items=4).toarray().tolist() == np.zeros((3, 4)).tolist()


def test_codes_out_of_range_and_floats_are_named():
    with pytest.raises(DataError, match="item code 5 at row 1 is outside 0 to 4"):
        interaction_matrix([0, 1], [4, 5], users=2, items=5)
    with pytest.raises(DataError, match="user code -1 at row 0 is outside 0 to 1"):
        interaction_matrix([-1, 1], [4, 4], users=2, items=5)
    with pytest.raises(DataError, match="user codes have dtype float64, in which large ids collide"):
        interaction_matrix([0.0, 1.0], [4, 4], users=2, items=5)
    with pytest.raises(DataError, match="the weight of row 1 is nan"):
        interaction_matrix([0, 1], [4, 4], users=2, items=5, weight=[1, float("nan")])
    with pytest.raises(ConfigurationError, match="there are 2 users, 1 items and 2 weights"):
        interaction_matrix([0, 1], [4], users=2, items=5)
