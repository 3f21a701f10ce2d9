"""A number for each distinct value of a column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.row_pieces import column_pieces
from lightning_mp.data.scratch_array import scratch_array

_AT_ONCE = 1 << 20
"""Rows between which the values found so far are joined; each joining looks at all of them."""


def column_codes(column: pa.ChunkedArray, dtype: npt.DTypeLike = np.int32) -> tuple[npt.NDArray[Any], pa.Array]:
    """Codes by order of first appearance, -1 for a missing value, and the value of each code.

    Args:
        column: (N,), of any type that has equal values.
        dtype: Of the codes.

    Example:
        >>> codes, words = column_codes(pa.chunked_array([["b", None], ["a", "b"]]))
        >>> codes.tolist(), words.to_pylist()
        ([0, -1, 1, 0], ['b', 'a'])
    """
    codes = scratch_array(len(column), dtype)
    words = pa.array([], type=column.type)
    for at in range(0, len(column), _AT_ONCE):
        encoded = column.slice(at, _AT_ONCE).dictionary_encode().unify_dictionaries()
        found = encoded.chunk(0).dictionary
        known = pc.index_in(found, value_set=words)
        new = found.filter(pc.is_null(known))
        # The place behind the last one, which a code of -1 points to, is the missing value's.
        place = np.full(len(found) + 1, -1, dtype=np.int64)
        place[:-1] = known.fill_null(-1).to_numpy()
        place[:-1][place[:-1] < 0] = len(words) + np.arange(len(new))
        words = pa.concat_arrays([words, new])
        indices = pa.chunked_array([chunk.indices for chunk in encoded.chunks])
        for where, piece in column_pieces(indices):
            codes[at + where.start : at + where.stop] = place[piece.fill_null(-1).to_numpy(zero_copy_only=False)]
    return codes, words
