"""The sum of squares against an exact one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_mp.data.audit.sum_of_squares import sum_of_squares


@pytest.mark.parametrize("count", [0, 1, 5, 8191, 8192, 8193, 40_000])
def test_any_number_of_numbers_has_the_sum_of_an_exact_addition(count):
    rng = np.random.default_rng()
    numbers = rng.normal(size=count) * np.exp(rng.uniform(-20, 20, count))
    exact = math.fsum(x * x for x in numbers.tolist())
    assert sum_of_squares(numbers) == pytest.approx(exact, rel=1e-12)


def test_squares_beyond_float64_are_infinite():
    with np.errstate(over="ignore"):
        assert sum_of_squares(np.array([1e200, 1.0])) == math.inf
