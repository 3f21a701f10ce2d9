"""What float16 loses, against the number format's own constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.stored_precision import LARGEST_MEAN_ERROR, float16_loss
from lightning_mp.float_formats import FLOAT16


@given(st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=20))
def test_counts_equal_the_formats_limits(values):
    x = np.array(values)
    narrow = np.abs(x.astype(np.float32).astype(np.float64))
    loss = float16_loss(x)
    assert loss.overflowed == (narrow >= FLOAT16.overflow_from).sum()
    assert loss.flushed == ((x != 0) & (narrow <= FLOAT16.flush_until)).sum()
    errors = [
        abs(float(np.float16(np.float32(v))) - v) / abs(v)
        for v in values
        if v and abs(np.float32(v)) < FLOAT16.overflow_from
    ]
    assert loss.mean_relative_error == pytest.approx(np.mean(errors) if errors else 0.0)
    assert loss.survives == (
        not loss.overflowed and not loss.flushed and loss.mean_relative_error <= LARGEST_MEAN_ERROR
    )


@pytest.mark.parametrize(
    ("values", "survives"),
    [
        (np.random.default_rng(0).normal(size=50_000), True),
        (np.random.default_rng(0).uniform(1e-6, 1e-5, size=1000), False),
        (10.0 ** np.random.default_rng(0).uniform(-7, 4, size=1000), False),
        (np.array([0.0, 65504.0]), True),
        (np.array([0.0, 65520.0]), False),
        (np.array([1.0, 2.0**-25]), False),
        (np.zeros(3), True),
    ],
)
def test_what_may_be_stored_as_float16(values, survives):
    assert float16_loss(values).survives is survives
