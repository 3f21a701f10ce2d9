"""The formats' limits against the casts of NumPy, ml_dtypes and torch."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.float_formats import BFLOAT16, FLOAT16, FLOAT32, TF32, FloatFormat


def numpy_cast(dtype):
    def cast(values):
        with np.errstate(over="ignore", under="ignore"):
            return np.asarray(values, np.float64).astype(dtype).astype(np.float64)

    return cast


def torch_cast(dtype):
    return lambda values: torch.as_tensor(values, dtype=torch.float64).to(dtype).double().numpy()


def rounded_to_steps(values):
    """tf32 by definition: multiples of the step of each binade, ties to even, 8 exponent bits."""
    values = np.asarray(values, np.float64)
    exponent = np.maximum(np.frexp(values)[1] - 1, -126)
    step = np.ldexp(1.0, exponent - 10)
    rounded = np.round(values / step) * step
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, values), rounded)


CASTS = [
    pytest.param(FLOAT16, numpy_cast(np.float16), id="float16-numpy"),
    pytest.param(FLOAT16, torch_cast(torch.float16), id="float16-torch"),
    pytest.param(BFLOAT16, numpy_cast(ml_dtypes.bfloat16), id="bfloat16-ml_dtypes"),
    pytest.param(BFLOAT16, torch_cast(torch.bfloat16), id="bfloat16-torch"),
    pytest.param(TF32, rounded_to_steps, id="tf32-by-definition"),
    pytest.param(FLOAT32, numpy_cast(np.float32), id="float32-numpy"),
    pytest.param(FLOAT32, torch_cast(torch.float32), id="float32-torch"),
]


@pytest.mark.parametrize(("form", "cast"), CASTS)
class TestAgainstCasts:
    def test_infinity_starts_at_overflow_from(self, form: FloatFormat, cast):
        below = math.nextafter(form.overflow_from, 0.0)
        for sign in (1.0, -1.0):
            assert cast([sign * form.overflow_from])[0] == sign * np.inf
            # A cast by way of float32 rounds twice; the value below the tie must then be one of float32.
            below = (
                below if cast([below])[0] == form.largest else float(np.nextafter(np.float32(form.overflow_from), 0))
            )
            assert cast([sign * below])[0] == sign * form.largest

    def test_zero_ends_at_flush_until(self, form: FloatFormat, cast):
        assert cast([form.flush_until])[0] == 0.0
        assert cast([-form.flush_until])[0] == 0.0
        above = max(
            math.nextafter(form.flush_until, 1.0), float(np.nextafter(np.float32(form.flush_until), np.float32(1)))
        )
        assert cast([above])[0] == form.smallest_subnormal

    def test_limits_are_values_of_the_format(self, form: FloatFormat, cast):
        limits = [form.largest, form.smallest_normal, form.smallest_subnormal, 1.0 + form.relative_step]
        assert cast(limits).tolist() == limits

    def test_below_the_smallest_normal_bits_are_lost(self, form: FloatFormat, cast):
        kept = form.smallest_normal * (1 + form.relative_step)
        lost = form.smallest_normal / 2 * (1 + form.relative_step)
        assert cast([kept])[0] == kept
        assert cast([lost])[0] != lost

    def test_integers_are_exact_until_the_limit_and_not_beyond(self, form: FloatFormat, cast):
        limit = form.exact_integers_until
        near = np.arange(max(limit - 300, 0), limit + 1, dtype=np.float64)
        assert (cast(near) == near).all()
        assert cast([limit + 1.0])[0] != limit + 1

    def test_relative_error_stays_within_half_a_step(self, form: FloatFormat, cast):
        values = np.exp(np.random.default_rng().uniform(math.log(1e-4), math.log(6e4), 20_000))
        error = np.abs(cast(values) - values) / values
        assert error.max() <= form.relative_step / 2
        assert error.max() > form.relative_step / 2.1  # the bound is reached, not merely kept


@pytest.mark.parametrize(
    ("form", "info"),
    [(FLOAT16, np.finfo(np.float16)), (BFLOAT16, ml_dtypes.finfo(ml_dtypes.bfloat16)), (FLOAT32, np.finfo(np.float32))],
    ids=["float16", "bfloat16", "float32"],
)
def test_agrees_with_finfo(form, info):
    assert (form.largest, form.smallest_normal) == (float(info.max), float(info.smallest_normal))
    assert (form.smallest_subnormal, form.relative_step) == (float(info.smallest_subnormal), float(info.eps))


@given(st.floats(-(2.0**17), 2.0**17, allow_nan=False))
def test_what_float16_does_to_a_value_is_foretold(value):
    with np.errstate(over="ignore", under="ignore"):
        cast = float(np.float16(np.float64(value)))
    assert math.isinf(cast) == (abs(value) >= FLOAT16.overflow_from)
    assert (cast == 0.0) == (abs(value) <= FLOAT16.flush_until)


def test_names_are_those_of_torch_and_numpy():
    assert [getattr(torch, form.name) for form in (FLOAT16, BFLOAT16, FLOAT32)] == [
        torch.float16,
        torch.bfloat16,
        torch.float32,
    ]
    assert np.dtype(FLOAT16.name) == np.float16
