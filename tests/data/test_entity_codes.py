from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.data.entity_codes import entity_codes

COLUMNS = {
    pa.int8(): st.sampled_from([-128, -1, 0, 127]),
    pa.uint8(): st.sampled_from([0, 1, 255]),
    pa.int32(): st.sampled_from([-(2**31), 0, 5, 2**31 - 1]),
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 1, 2**32, 2**63 - 1]),
    pa.uint64(): st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    pa.string(): st.text(max_size=2),
    pa.large_string(): st.sampled_from(["", "a", "aa"]),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", "b"]),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.5, -2.0, float("inf")]),
    pa.timestamp("us", "UTC"): st.integers(0, 2**40),
}


@st.composite
def tables(draw):
    """One to three columns, some values missing, in one to three chunks each."""
    count = draw(st.integers(0, 12))
    columns = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        kind = draw(st.sampled_from(list(COLUMNS)))
        values = draw(st.lists(st.none() | COLUMNS[kind], min_size=count, max_size=count))
        cuts = [0, *sorted(draw(st.lists(st.integers(0, count), max_size=2))), count]
        pieces = [pa.array(values[start:end], type=kind) for start, end in pairwise(cuts)]
        columns[name] = pa.chunked_array(pieces, type=kind)
    return pa.table(columns)


@given(tables())
def test_codes_are_equal_where_all_keys_are(table):
    codes, size = entity_codes(table, table.column_names)
    keys = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert len(codes) == len(keys)
    assert codes.dtype in (np.uint32, np.uint64)
    assert all(code < size <= 2**64 for code in codes.tolist())
    for first, key in enumerate(keys):
        assert [bool(code == codes[first]) for code in codes] == [other == key for other in keys]


def test_keys_whose_combinations_are_beyond_64_bits():
    generator = np.random.default_rng()
    rows = 1000
    keys = {name: generator.choice([0, 1, 2**31, 2**32 - 3], rows) for name in "abcd"}
    codes, _ = entity_codes(pa.table(keys), list(keys))
    wanted = np.unique(np.stack(list(keys.values())), axis=1, return_inverse=True)[1].reshape(-1)
    pairs = np.unique(np.stack([codes, wanted.astype(np.uint64)]), axis=1)
    assert pairs.shape[1] == len(np.unique(codes)) == len(np.unique(wanted))


@pytest.mark.parametrize(("sizes", "dtype"), [((60_000, 60_000), np.uint32), ((70_000, 70_000), np.uint64)])
def test_codes_are_no_wider_than_they_must_be(sizes, dtype):
    table = pa.table({name: np.array([0, size]) for name, size in zip("ab", sizes, strict=True)})
    assert entity_codes(table, ["a", "b"])[0].dtype == dtype
