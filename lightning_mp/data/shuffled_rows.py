"""Rows in a random order, in as little memory as their numbers take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array


def shuffled_rows(count: int, generator: np.random.Generator) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    """`generator.permutation(count)`, of four bytes a row where that is enough.

    Args:
        count: Rows.
        generator: Of the order.

    Example:
        >>> rows = shuffled_rows(1000, np.random.default_rng(0))
        >>> bool((rows == np.random.default_rng(0).permutation(1000)).all())
        True
    """
    rows = scratch_array(count, np.int32 if count < 2**31 else np.int64)
    for piece in row_pieces(count):
        rows[piece] = np.arange(piece.start, piece.stop)
    generator.shuffle(rows)
    return rows
