"""The state of a pass against a slow float64 oracle; any split and any order give the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.statistics import column_statistics
from lightning_mp.data.audit.working_memory import ROWS, WorkingMemory

FORMATS = {"float16": (np.float16, 2.0**-14, 65520.0), "bfloat16": (None, 2.0**-126, None)}


def cast(values: np.ndarray, name: str) -> np.ndarray:
    """Straight from float32, by a library's own cast."""
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32)
        if name == "float16":
            return single.astype(np.float16).astype(np.float64)
        import torch

        return torch.from_numpy(single.copy()).bfloat16().double().numpy()


def oracle(values: np.ndarray) -> dict:
    """Everything in plain float64 NumPy, over the whole column at once."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        doubles = values.astype(np.float64)
    finite = doubles[np.isfinite(doubles)]
    nonzero = finite[finite != 0]
    result = {
        "nans": int(np.isnan(doubles).sum()),
        "infinities": int(np.isinf(doubles).sum()),
        "finite": len(finite),
        "zeros": int((finite == 0).sum()),
        "negatives": int((finite < 0).sum()),
        "minimum": finite.min() if len(finite) else None,
        "maximum": finite.max() if len(finite) else None,
        "mean": finite.mean() if len(finite) else None,
        "std": finite.std() if len(finite) else None,
        "distinct": len(np.unique(finite + 0.0)),
        "ratio": np.abs(nonzero).max() / np.abs(nonzero).min() if len(nonzero) else None,
        "zero_share": (finite == 0).mean() if len(finite) else None,
        "whole": bool(len(finite)) and bool((finite == np.floor(finite)).all()),
        "minimum_rows": int((finite == finite.min()).sum()) if len(finite) else 0,
        "formats": {},
    }
    for name, (_, normal, _) in FORMATS.items():
        become = cast(finite, name)
        kept = np.isfinite(become)
        away = np.abs(become - finite)[kept]
        counted = finite[kept] != 0
        errors = np.minimum(np.sort(away[counted] / np.abs(finite[kept][counted])), 1.0)
        result["formats"][name] = {
            "overflowed": int((~kept).sum()),
            "flushed": int(((become == 0) & (finite != 0)).sum()),
            "subnormal": int(((become != 0) & (np.abs(become) < normal)).sum()),
            "exact": int((become == finite).sum()),
            "noise": float(np.sqrt((away**2).mean()) / finite.std()) if kept.any() and np.ptp(finite) > 0 else None,
            "error_p50": errors[int(np.ceil(0.5 * len(errors))) - 1] if len(errors) else None,
            "error_p99": errors[int(np.ceil(0.99 * len(errors))) - 1] if len(errors) else None,
            "collided": len(np.unique(finite + 0.0)) - len(np.unique(become + 0.0)) if result["whole"] else None,
        }
    return result


def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng()
    edges = [0.0, -0.0, 2.0**-25, -(2.0**-26), 2.0**-24, 65504.0, 65519.9, 65520.0, -65536.0, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore", under="ignore"):
        return {
            "normal": rng.normal(size=5000).astype(np.float32),
            "normal far from zero": rng.normal(1e6, 1.0, 5000),
            "lognormal": rng.lognormal(0, 6, 5000),
            "half precision": rng.normal(size=5000).astype(np.float16).astype(np.float32),
            "bfloat16 patterns": (rng.integers(0, 2**16, 5000, dtype=np.uint32) << 16).view(np.float32),
            "any pattern": rng.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32),
            "any magnitude": rng.choice([-1.0, 1.0], 5000) * np.exp(rng.uniform(-40, 40, 5000)),
            "counts": rng.poisson(30, 5000).astype(np.float32),
            "keys": rng.integers(0, 20_000, 3000),
            "large keys": rng.integers(2**24, 2**24 + 3000, 3000).astype(np.float64),
            "int64": rng.integers(-(2**40), 2**40, 3000),
            "edges": np.array(edges * 5, dtype=np.float32),
            "subnormal": rng.uniform(0, 2.0**-14, 4000).astype(np.float32),
            "constant": np.full(100, 3.14),
            "zeros": np.zeros(50, dtype=np.float32),
            "bursts": np.where(rng.random(4000) < 0.95, 0.0, rng.lognormal(10, 2, 4000)),
            "one": np.array([2.5], dtype=np.float32),
            "flags": rng.integers(0, 2, 3000).astype(np.float32),
            "counts, some missing": np.where(rng.random(3000) < 0.1, np.nan, rng.poisson(30, 3000)),
            "counts and infinity": np.append(rng.poisson(3, 3000), [np.inf, -np.inf]).astype(np.float32),
            "integers, then halves": np.append(rng.integers(-9, 9, 3000), rng.integers(0, 9, 3000) + 0.5),
            "integers with gaps in float32": (2.0**25 + 4 * rng.integers(0, 3000, 3000)).astype(np.float32),
            "large integers close together": 2**30 + rng.integers(0, 50, 500),
            "both signs beyond float16": rng.choice([-70_000.0, 65_519.0, 65_520.0, 12.0, 0.0], 3000),
        }


def state_of(values: np.ndarray, cuts: list[int] | None = None) -> NumberState:
    state = NumberState()
    with np.errstate(invalid="ignore"):
        for piece in np.split(values, cuts or []):
            state.update(piece)
    return state


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # squares of the oracle
@pytest.mark.parametrize("name", list(columns()))
def test_every_number_equals_the_oracle(name):
    values = columns()[name]
    found, expected = column_statistics(state_of(values)), oracle(values)
    for key in ("nans", "infinities", "finite", "zeros", "negatives", "minimum", "maximum", "minimum_rows", "whole"):
        assert getattr(found, key) == expected[key], key
    for key in ("mean", "std", "ratio", "zero_share"):
        value = expected[key]
        assert getattr(found, key) == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), key
    assert found.distinct == pytest.approx(expected["distinct"], rel=0 if found.distinct_exact else 0.1)
    for number_format, loss in expected["formats"].items():
        mine = found.formats[number_format]
        for key in ("overflowed", "flushed", "subnormal", "exact"):
            assert getattr(mine, key) == loss[key], (number_format, key)
        for key, width in (("noise", 1e-5), ("error_p50", 2.0**-7), ("error_p99", 2.0**-7)):  # a bin is 2^-7 wide
            value = loss[key]
            same = None if value is None else pytest.approx(value, rel=width, abs=1e-9)
            assert getattr(mine, key) == same, (number_format, key)
        if found.distinct_exact:
            assert mine.collided == loss["collided"], number_format


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_pieces_of_many_blocks_and_a_memory_used_again_count_the_same(dtype):
    rng = np.random.default_rng()
    memory, rows = WorkingMemory(), 2 * ROWS + 77
    normal = rng.normal(size=rows) * 1000
    bursts = np.where(rng.random(rows) < 0.7, 0, normal)
    zeros_and_halves = rng.integers(0, 4, rows) / 2
    columns = (normal, bursts, rng.poisson(30, rows), normal / 1000, zeros_and_halves, rng.integers(-1, 2, rows))
    for values in (column.astype(dtype) for column in columns):
        found, one_by_one = NumberState(), NumberState()
        found.update(values, memory=memory)
        for piece in np.split(rng.permutation(values), [5, ROWS + 5]):
            one_by_one.update(piece)
        for state in (column_statistics(found), column_statistics(one_by_one)):
            expected = oracle(values)
            assert (state.zeros, state.negatives) == (expected["zeros"], expected["negatives"])
            assert state.mean == pytest.approx(expected["mean"], rel=1e-9, abs=1e-12)
            assert state.std == pytest.approx(expected["std"], rel=1e-9)
            for name, loss in expected["formats"].items():
                mine = state.formats[name]
                for key in ("overflowed", "flushed", "subnormal", "exact"):
                    assert getattr(mine, key) == loss[key], (name, key)
                for key in ("error_p50", "error_p99"):
                    assert getattr(mine, key) == pytest.approx(loss[key], rel=2.0**-7, abs=1e-9), (name, key)
                assert mine.noise == pytest.approx(loss["noise"], rel=1e-5, abs=1e-9)
                if state.distinct_exact:
                    assert mine.collided == loss["collided"]


def test_a_piece_of_integers_and_one_of_others_count_the_same_as_both_at_once():
    rng = np.random.default_rng()
    whole, halves = rng.integers(-300, 300, 2000).astype(np.float32), (rng.integers(-9, 9, 2000) / 2).astype(np.float32)
    together, one, other = NumberState(), NumberState(), NumberState()
    together.update(rng.permutation(np.concatenate([whole, halves])))
    one.update(whole)  # each integer once with its count
    other.update(halves)  # number by number
    one.merge(other)
    mixed, merged = column_statistics(together), column_statistics(one)
    for key in ("zeros", "negatives", "distinct", "minimum_rows", "maximum_rows", "quantiles", "magnitudes", "ratio",
                "whole", "float32_bits"):  # fmt: skip
        assert getattr(mixed, key) == getattr(merged, key), key
    for name, loss in mixed.formats.items():
        for key in ("exact", "error_p50", "error_p99", "collided"):
            assert getattr(loss, key) == getattr(merged.formats[name], key), (name, key)


@given(
    numbers=st.lists(st.floats(width=32), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4).map(sorted),
    seed=st.integers(0, 1000),
)
def test_any_split_and_any_order_count_the_same(numbers, cuts, seed):
    values = np.array(numbers, dtype=np.float32)
    whole = column_statistics(state_of(values))
    merged = NumberState()
    for piece in np.split(np.random.default_rng(seed).permutation(values), [min(c, len(values)) for c in cuts]):
        part = NumberState()
        part.update(piece)
        merged.merge(part)
    other = column_statistics(merged)
    for key in ("rows", "nans", "infinities", "finite", "zeros", "negatives", "minimum", "maximum", "distinct", "whole",
                "minimum_rows", "maximum_rows", "quantiles", "magnitudes", "ratio", "float32_bits"):  # fmt: skip
        assert getattr(whole, key) == getattr(other, key), key
    if whole.finite:
        size = max(abs(whole.minimum), abs(whole.maximum))
        assert other.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-9 * size)
        assert other.std == pytest.approx(whole.std, rel=1e-9, abs=1e-9 * size)
    for name, loss in whole.formats.items():
        for key in ("overflowed", "flushed", "subnormal", "exact", "error_p50", "error_p99", "collided"):
            assert getattr(loss, key) == getattr(other.formats[name], key), (name, key)


@given(
    rows=st.lists(st.tuples(st.one_of(st.none(), st.floats(-10, 10)), st.sampled_from([-1, 0, 1])), min_size=1),
    cut=st.integers(0, 50),
)
def test_labels_parts_and_missing_rows_are_counted_where_they_stand(rows, cut):
    valid = np.array([value is not None for value, _ in rows])
    values = np.array([value for value, _ in rows if value is not None], dtype=np.float64)
    marks = np.array([mark for _, mark in rows], dtype=np.int8)
    state = NumberState(label=True, parts=True)
    there = int(valid[:cut].sum())
    state.update(values[:there], valid[:cut], label=marks[:cut], part=marks[:cut])
    state.update(values[there:], valid[cut:], label=marks[cut:], part=marks[cut:])
    assert state.rows == len(rows)
    assert state.nulls == int((~valid).sum())
    assert state.positives.sum() == int((valid & (marks == 1)).sum())
    assert state.labelled.sum() == int((valid & (marks >= 0)).sum())
    assert state.parts.sum(axis=1).tolist() == [int((valid & (marks == part)).sum()) for part in (0, 1)]
    assert state.part_rows[1].tolist() == [int((marks == 1).sum()), int(((marks == 1) & ~valid).sum())]


def test_bits_of_the_fraction_that_are_used():
    assert column_statistics(state_of(np.array([1.5, 2.25]))).float32_bits == 3  # 1.001 in binary
    assert column_statistics(state_of(np.array([1.0, 4.0]))).float32_bits == 0
    assert column_statistics(state_of(np.array([0.1, 0.2]))).float32_bits == 23
    half = np.random.default_rng().normal(size=1000).astype(np.float16).astype(np.float32)
    assert column_statistics(state_of(half)).float32_bits == 10


def test_a_column_beyond_float32_is_counted_apart_from_infinity():
    found = column_statistics(state_of(np.array([1e300, -1e300, np.inf, 1.0])))
    assert (found.beyond_float32, found.infinities, found.finite) == (2, 1, 3)
    assert found.formats["bfloat16"].overflowed == 2
