"""Numbers as a log would have them, that are stored to the bit as before."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from lightning_mp.data import transforms
from lightning_mp.export.plain_number import plain_number
from lightning_mp.export.raw_rows import decode_rows, encode_rows
from lightning_mp.schema import Feature, FeatureSchema, TransformKind


def feature(kind, values, dtype):
    return Feature(name="x", kind="numeric", role="context", source_dtype="double", stored_dtype=dtype,
                   transform=transforms.fit(kind, values), width=transforms.width(kind))  # fmt: skip


def roundtrip(spec, values):
    """What comes back of values, and what is stored of anything."""
    schema = FeatureSchema(features=(spec,))
    ids, dense = encode_rows(schema, {}, {"x": values})
    return decode_rows(schema, {}, ids, dense)["x"], lambda numbers: encode_rows(schema, {}, {"x": numbers})[1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", get_args(TransformKind))
def test_it_is_stored_alike_by_every_transform(kind, dtype):
    rng = np.random.default_rng()
    values = np.round(rng.lognormal(2, 2, 300), 2) * (1 if kind.startswith("log1p") else rng.choice([-1, 1], 300))
    spec = feature(kind, values, dtype)
    back, stored = roundtrip(spec, values)
    plain = [plain_number(spec, value) for value in back.tolist()]
    np.testing.assert_array_equal(stored(np.array(plain, dtype=np.float64)), stored(back))
    assert all(len(repr(number)) <= len(repr(value)) for number, value in zip(plain, back.tolist(), strict=True))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_counts_prices_and_ages_come_back_as_they_were(dtype):
    rng = np.random.default_rng()
    counts = rng.poisson(1.5, 400).astype(np.float64)
    prices, ages = np.round(rng.uniform(1, 9, 400), 1), rng.integers(18, 90, 400).astype(np.float64)
    for kind, values in (("log1p_zscore", counts), ("zscore", prices), ("zscore", ages), ("log1p", counts)):
        spec = feature(kind, values, dtype)
        back, _ = roundtrip(spec, values)
        plain = [plain_number(spec, value) for value in back.tolist()]
        assert plain == values.tolist()
        assert all(isinstance(number, int) == float(number).is_integer() for number in plain)
        assert not any(str(number).startswith("-0") for number in plain)


def test_what_is_not_finite_stays():
    spec = feature("zscore", np.array([1.0, 2.0]), "float32")
    assert np.isnan(plain_number(spec, float("nan")))
    assert plain_number(spec, float("inf")) == float("inf")
    huge = plain_number(feature("none", np.array([1.0]), "float32"), 1.5e300)
    assert huge > 1e37  # beyond float32, as before
