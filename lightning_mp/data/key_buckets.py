"""Rows in buckets by a key, so that what is counted key by key never looks at all rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.chosen_rows import chosen_places
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array

Int64 = npt.NDArray[np.int64]
ROWS: Final = 1 << 18
"""Rows of a bucket, about."""


def key_buckets(key: Int64, rows: int = ROWS) -> Iterator[Int64]:
    """Places of all rows, ascending within a bucket; all rows of one key are in one bucket.

    Args:
        key: (N,).
        rows: Of a bucket, about: a key with more of them has them all in one.

    Example:
        >>> [places.tolist() for places in key_buckets(np.array([7, 8, 7]))]
        [[0, 1, 2]]
    """
    count = min(-(-len(key) // rows), 255)
    if count <= 1:
        yield np.arange(len(key), dtype=np.int64)
        return
    bucket = scratch_array(len(key), np.uint8)
    for piece in row_pieces(len(key)):
        # Keys that follow a pattern, such as every second number, are spread by the upper bits of a product.
        mixed = key[piece].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bucket[piece] = ((mixed >> np.uint64(40)) % np.uint64(count)).astype(np.uint8)
    for number in range(count):
        yield chosen_places(bucket == number)
