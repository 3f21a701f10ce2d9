"""Rounding by bits against the casts of NumPy and torch, over every bit pattern that chance gives."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.audit.rounding import rounded, rounded_sizes, top_halves
from lightning_mp.data.audit.working_memory import WorkingMemory
from lightning_mp.float_formats import BFLOAT16, FLOAT16


def casts(values: np.ndarray) -> dict[str, np.ndarray]:
    with np.errstate(over="ignore", under="ignore"):
        half = values.astype(np.float16).astype(np.float32)
    return {"float16": half, "bfloat16": torch.from_numpy(values.copy()).bfloat16().float().numpy()}


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one.view(np.uint32) == other.view(np.uint32)).all())


def test_any_bit_pattern_rounds_as_a_cast_does():
    bits = np.random.default_rng().integers(0, 2**32, 300_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    expected = casts(values)
    for number_format in (FLOAT16, BFLOAT16):
        assert same_bits(rounded(values, number_format), expected[number_format.name])


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50), st.sampled_from([FLOAT16, BFLOAT16]))
def test_drawn_numbers_round_as_a_cast_does(numbers, number_format):
    values = np.array(numbers, dtype=np.float32)
    assert same_bits(rounded(values, number_format), casts(values)[number_format.name])


def test_the_ties_of_float16_and_their_neighbours():
    ties = [2.0**-25, 2.0**-14 - 2.0**-25, 65504.0, 65520.0, 65536.0, 2049.0, 2051.0, 1.0 + 2.0**-11, 6.1035e-5]
    near = np.array(ties, dtype=np.float32)
    values = np.concatenate([near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)), -near])
    assert same_bits(rounded(values, FLOAT16), casts(values)["float16"])
    assert rounded(np.empty(0, dtype=np.float32), FLOAT16).size == 0


def test_the_upper_half_is_the_pattern_of_truncation():
    values = np.array([1.0, -2.5, 3.14159, 1e-40, -0.0], dtype=np.float32)
    bits = values.view(np.uint32).tolist()
    index = np.empty(len(values), dtype=np.int64)
    assert top_halves(values, index).tolist() == [pattern >> 16 for pattern in bits]
    assert top_halves(values, index, sign=False).tolist() == [pattern >> 16 & 0x7FFF for pattern in bits]


@given(st.lists(st.floats(min_value=0, width=32, allow_infinity=False), min_size=1, max_size=50))
def test_numbers_without_a_sign_round_as_a_cast_does(numbers):
    memory = WorkingMemory()
    for number_format in (FLOAT16, BFLOAT16):
        size = np.array([x for x in numbers if x < number_format.overflow_from] or [0.0], dtype=np.float32)
        found = rounded_sizes(size, number_format, largest=float(size.max()), memory=memory)
        assert same_bits(found, casts(size)[number_format.name])


def test_every_bit_pattern_of_a_range_without_a_sign_rounds_as_a_cast_does():
    memory = WorkingMemory()
    bits = np.random.default_rng().integers(0, 0x7F800000, (20, 20_000), dtype=np.uint32)
    for size in bits.view(np.float32):
        for number_format in (FLOAT16, BFLOAT16):
            inside = size[size < np.float32(number_format.overflow_from)]
            small = inside[inside < 2.0**100]
            for some in (inside, small):
                for smallest in (0.0, float(some.min())):
                    known = {"largest": float(some.max()), "smallest": smallest}
                    found = rounded_sizes(some, number_format, memory=memory, **known)
                    assert same_bits(found, casts(some)[number_format.name])
        normal = size[(size >= np.float32(2.0**-14)) & (size < np.float32(2.0**15))]
        for number_format in (FLOAT16, BFLOAT16):
            found = rounded_sizes(normal, number_format, largest=2.0**15, smallest=2.0**-14, memory=memory)
            assert same_bits(found, casts(normal)[number_format.name])
