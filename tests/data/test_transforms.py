"""Transforms against plain Python floats, and each against its inverse."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data import transforms
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import Transform

NUMBERS = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=1, max_size=30)
POSITIVE = st.lists(st.floats(0, 1e6).map(lambda x: round(x, 3)), min_size=1, max_size=30)


def oracle(kind, values, x):
    log = [math.log(max(v, 0.0) + 1.0) for v in values]
    match kind:
        case "zscore":
            return (x - statistics.fmean(values)) / (statistics.pstdev(values) or 1.0)
        case "linear":
            return (x - (min(values) + max(values)) / 2) / ((max(values) - min(values)) / 2 or 1.0)
        case "log1p":
            return math.log(max(x, 0.0) + 1.0)
        case "log1p_zscore":
            spread = statistics.pstdev(log) if min(log) != max(log) else 0.0
            return (math.log(max(x, 0.0) + 1.0) - statistics.fmean(log)) / (spread or 1.0)
        case "signed_log":
            return math.copysign(math.log(abs(x) + 1.0), x) if x else 0.0
        case _:
            return x


@pytest.mark.parametrize("kind", ["none", "zscore", "linear", "signed_log"])
@given(values=NUMBERS, others=NUMBERS)
def test_equals_plain_python(kind, values, others):
    transform = transforms.fit(kind, values)
    expected = [oracle(kind, values, x) for x in others]
    np.testing.assert_allclose(transforms.apply(transform, others), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["log1p", "log1p_zscore"])
@given(values=POSITIVE, others=NUMBERS)
def test_equals_plain_python_for_logs(kind, values, others):
    transform = transforms.fit(kind, values)
    expected = [oracle(kind, values, x) for x in others]
    np.testing.assert_allclose(transforms.apply(transform, others), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["none", "zscore", "linear", "log1p", "log1p_zscore", "signed_log"])
@given(values=POSITIVE)
def test_invert_undoes_apply(kind, values):
    transform = transforms.fit(kind, values)
    np.testing.assert_allclose(
        transforms.invert(transform, transforms.apply(transform, values)), values, rtol=1e-9, atol=1e-9
    )


def test_a_constant_that_was_computed_is_not_blown_up_to_noise():
    values = np.array([0.1 + 0.2, 0.3, 0.3, 0.1 * 3])
    assert len(set(values)) > 1
    assert np.abs(transforms.apply(transforms.fit("zscore", values), values)).max() < 1e-15
    apart = np.array([1.0, 1.0 + 1e-14])
    assert transforms.apply(transforms.fit("zscore", apart), apart).tolist() == pytest.approx([-1.0, 1.0], rel=0.1)


@pytest.mark.parametrize("kind", ["zscore", "linear", "log1p_zscore", "signed_log"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 3.14, 1e300])
def test_a_constant_column_stays_finite(kind, constant):
    transform = transforms.fit(kind, [constant] * 7)
    assert np.isfinite(transforms.apply(transform, [constant, 0.0])).all()
    if kind == "zscore":
        assert transform.constants["std"] == 1.0


def test_huge_values_do_not_overflow():
    wide = transforms.fit("zscore", [1e300, -1e300])
    assert transforms.apply(wide, [1e300]).tolist() == [1.0]
    assert transforms.apply(transforms.fit("linear", [-1.7e308, 1.7e308]), [1.7e308]).tolist() == [1.0]


def test_nan_stays_nan_and_the_input_is_left_alone():
    values = np.array([1.0, np.nan])
    for kind in ("none", "log1p", "signed_log"):
        out = transforms.apply(Transform(kind=kind), values)
        assert np.isnan(out[1])
        out[0] = 9.0
    assert values[0] == 1.0


def test_refusals():
    with pytest.raises(DataError, match=r"`log1p` is for numbers from 0 on, 1 are negative, the smallest -2"):
        transforms.fit("log1p", [1.0, -2.0])
    with pytest.raises(DataError, match="2 values are not finite"):
        transforms.fit("zscore", [1.0, np.nan, np.inf])
    with pytest.raises(DataError, match="there is not one value"):
        transforms.fit("zscore", [])
    with pytest.raises(ConfigurationError, match="`logit` is not a transform"):
        transforms.fit("logit", [1.0])


@given(values=NUMBERS, others=NUMBERS)
def test_power_of_two_changes_no_bit_and_comes_back_to_the_bit(values, others):
    transform = transforms.fit("power_of_two", values)
    scale = transform.constants["scale"]
    assert math.frexp(scale)[0] == 0.5
    largest = max(map(abs, values))
    assert not largest or 0.5 <= largest * scale < 1.0
    scaled = transforms.apply(transform, others)
    assert transforms.invert(transform, scaled).tolist() == others


@given(values=NUMBERS, others=NUMBERS)
def test_robust_clip_is_the_zscore_of_what_it_clipped(values, others):
    transform = transforms.fit("robust_clip", values)
    low, high = transform.constants["low"], transform.constants["high"]
    clipped = [min(max(x, low), high) for x in values]
    expected = [oracle("zscore", clipped, min(max(x, low), high)) for x in others]
    np.testing.assert_allclose(transforms.apply(transform, others), expected, rtol=1e-6, atol=1e-6)


@given(values=POSITIVE, others=POSITIVE)
def test_log1p_flag_makes_a_size_and_a_flag_and_undoes_both(values, others):
    transform = transforms.fit("log1p_flag", values)
    columns = transforms.apply(transform, others)
    assert columns.shape == (len(others), transforms.width("log1p_flag")) == (len(others), 2)
    assert columns[:, 1].tolist() == [float(x == 0) for x in others]
    nonzero = [x for x in values if x] or values
    expected = [oracle("log1p_zscore", nonzero, x) if x else 0.0 for x in others]
    np.testing.assert_allclose(columns[:, 0], expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(transforms.invert(transform, columns), others, rtol=1e-9, atol=1e-9)


@given(values=NUMBERS, others=NUMBERS)
def test_quantile_keeps_the_order_between_minus_one_and_one(values, others):
    transform = transforms.fit("quantile", values)
    places = transforms.apply(transform, sorted(others))
    assert (np.diff(places) >= 0).all()
    assert (np.abs(places) <= 1.0).all()
    assert np.isnan(transforms.apply(transform, [math.nan]))[0]


def test_quantile_gives_the_share_of_rows_below_and_comes_back():
    rng = np.random.default_rng()
    values = rng.lognormal(0, 4, 20_000)
    transform = transforms.fit("quantile", values)
    places = transforms.apply(transform, values)
    rank = np.argsort(np.argsort(values)) / (len(values) - 1)
    np.testing.assert_allclose((places + 1) / 2, rank, atol=1 / 64)
    np.testing.assert_allclose(transforms.invert(transform, places), values, rtol=1e-6)
    half = transforms.fit("quantile", np.repeat([0.0, 1.0], [900, 100]))
    assert transforms.apply(half, [0.0, 1.0]).tolist() == pytest.approx([-0.1, 0.9], abs=0.02)
    assert transforms.apply(transforms.fit("quantile", [3.0, 3.0]), [1.0, 3.0, 9.0]).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["none", "zscore", "signed_log", "quantile", "log1p_flag", "robust_clip"])
def test_a_number_outside_the_valid_range_is_the_one_that_stands_in(kind):
    fitted = transforms.fit(kind, [0.0, 2.0, 5.0])
    limits = {"valid_from": 0.0, "valid_to": 10.0, "stand_in": 2.0}
    transform = Transform(kind=kind, constants={**fitted.constants, **limits})
    found = transforms.apply(transform, [-1.0, 11.0, 2.0, 0.0, 10.0])
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[2])
    assert np.array_equal(found[3:], transforms.apply(fitted, [0.0, 10.0]))
