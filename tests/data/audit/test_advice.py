"""Advised transforms bring every kind of column into range, and the forecast from bins equals a second pass."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_mp.data import transforms
from lightning_mp.data.audit.advice import advise
from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.score import FORMAT_OF, column_score
from lightning_mp.data.audit.statistics import column_statistics
from lightning_mp.data.audit.thresholds import Thresholds


def state_of(values) -> NumberState:
    state = NumberState()
    state.update(np.asarray(values))
    return state


def advice_of(values, name="x", policy="fp16"):
    state = state_of(values)
    return advise(name, state, column_statistics(state), Thresholds(), policy)


def shapes() -> dict[str, tuple[np.ndarray, str]]:
    rng = np.random.default_rng(3)
    n = 20_000
    return {
        "narrow": (rng.uniform(-0.2, 0.2, n), "none"),
        "prices": (rng.uniform(5, 900, n), "zscore"),
        "spend": (rng.lognormal(5, 4, n), "log1p_zscore"),
        "both signs": (rng.choice([-1, 1], n) * rng.lognormal(3, 4, n), "signed_log"),
        "tiny": (rng.uniform(1e-8, 1e-6, n), "power_of_two"),
        "bursts": (np.where(rng.random(n) < 0.95, 0.0, rng.lognormal(10, 2, n)), "log1p_flag"),
        "outliers": (np.where(rng.random(n) < 0.0005, 4e4, rng.normal(50, 1, n)), "robust_clip"),
        "outliers, both signs": (np.where(rng.random(n) < 0.0005, 7e4, rng.standard_normal(n)), "robust_clip"),
        "two shapes": (
            np.where(rng.random(n) < 0.005, rng.integers(2000, 30000, n), rng.poisson(2, n) + 1.0),
            "log1p_zscore",
        ),
        "stamps": (rng.uniform(1.6e9, 1.7e9, n), "zscore"),
    }


@pytest.mark.parametrize("name", list(shapes()))
def test_the_advised_transform_brings_the_column_into_range(name):
    values, kind = shapes()[name]
    for policy in ("fp16", "bf16"):
        advice = advice_of(values, policy=policy)
        assert advice.transform.kind == kind
        assert advice.stored == "float16"
        assert advice.score > 95, policy
        assert advice.score >= column_score(column_statistics(state_of(values)), policy) - 1e-9


@pytest.mark.parametrize("name", list(shapes()))
def test_the_forecast_from_bins_equals_a_second_pass(name):
    values, _ = shapes()[name]
    advice = advice_of(values)
    column = transforms.apply(advice.transform, values)
    real = column_statistics(state_of(column[column[:, 1] == 0, 0] if column.ndim == 2 else column))
    for number_format in FORMAT_OF.values():
        told, measured = advice.formats[number_format], real.formats[number_format]
        assert (told.overflowed, told.flushed) == (measured.overflowed, measured.flushed)
        assert told.subnormal == pytest.approx(measured.subnormal, abs=0.002 * len(values))
        if measured.error_p99:
            assert told.error_p99 == pytest.approx(measured.error_p99, rel=0.15)
        assert told.noise == pytest.approx(measured.noise, rel=0.25)


def test_keys_and_constants_are_no_floats():
    rng = np.random.default_rng()
    assert advice_of(rng.integers(10**8, 2 * 10**8, 5000)).stored == "int32"
    assert advice_of(rng.integers(0, 900, 5000), name="category_id").stored == "int32"
    assert advice_of(rng.integers(0, 900, 5000), name="views").stored == "float16"
    assert advice_of(np.full(10, 3.0)).stored == "drop"
    assert advice_of(np.full(10, np.nan)).stored == "drop"
