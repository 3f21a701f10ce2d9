"""Which users had which items, as a sparse matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def known_pairs(user: npt.NDArray[np.int64], item: npt.NDArray[np.int64], shape: tuple[int, int]) -> Any:
    """A (users, items) `scipy.sparse.csr_array` of ones, whatever the number of rows of a pair.

    Args:
        user: (N,) codes.
        item: (N,) codes.
        shape: Numbers of users and items.

    Example:
        >>> known_pairs(np.array([0, 0, 1]), np.array([2, 2, 0]), (2, 3)).toarray().tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    from scipy.sparse import csr_array

    pairs = np.unique(user * shape[1] + item)
    return csr_array((np.ones(len(pairs)), (pairs // shape[1], pairs % shape[1])), shape=shape)
