"""Rows of an array by a mask or by their places, copied a piece at a time into a scratch array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array

Mask = npt.NDArray[np.bool_]


def chosen_rows(values: npt.NDArray[Any], mask: Mask) -> npt.NDArray[Any]:
    """`values[mask]`.

    Args:
        values: (N, ...).
        mask: (N,).

    Example:
        >>> chosen_rows(np.array([1, 2, 3]), np.array([True, False, True])).tolist()
        [1, 3]
    """
    made, at = scratch_array((int(np.count_nonzero(mask)), *values.shape[1:]), values.dtype), 0
    for piece in row_pieces(len(values)):
        found = values[piece][mask[piece]]
        made[at : at + len(found)] = found
        at += len(found)
    return made


def chosen_places(mask: Mask) -> npt.NDArray[np.int64]:
    """`np.flatnonzero(mask)`.

    Args:
        mask: (N,).
    """
    made, at = scratch_array(int(np.count_nonzero(mask)), np.int64), 0
    for piece in row_pieces(len(mask)):
        found = np.flatnonzero(mask[piece])
        np.add(found, piece.start, out=made[at : at + len(found)])
        at += len(found)
    return made


def rows_at(values: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """`values[places]`.

    Args:
        values: (N, ...).
        places: (M,).
    """
    made = scratch_array((len(places), *values.shape[1:]), values.dtype)
    for piece in row_pieces(len(places)):
        made[piece] = values[places[piece]]
    return made


def joined(above: npt.NDArray[Any], below: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`np.concatenate([above, below])`.

    Args:
        above: (N,).
        below: (M,) of the same type.
    """
    made = scratch_array(len(above) + len(below), above.dtype)
    made[: len(above)] = above
    made[len(above) :] = below
    return made
