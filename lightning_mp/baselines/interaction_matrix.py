"""Who did what, as a sparse matrix of users and items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from lightning_mp.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def interaction_matrix(
    user: ArrayLike, item: ArrayLike, *, users: int, items: int, weight: ArrayLike | None = None
) -> csr_array:
    """One cell a pair of user and item, with the sum of its rows' weights.

    Args:
        user: (N,) integer codes of the users of the rows.
        item: (N,) codes of their items.
        users: Number of users: codes are below it. Users without a row have an empty line.
        items: Number of items.
        weight: (N,) weights, such as of `recency_weights`; 1 when left out, so that cells are counts.

    Returns:
        (users, items) float64, its columns ascending in each line, without stored zeros.

    Raises:
        ConfigurationError: The columns differ in length.
        DataError: A code is below 0 or not below its number, or a weight is not finite.

    Example:
        >>> interaction_matrix([0, 0, 1], [2, 2, 0], users=2, items=3).toarray()
        array([[0., 0., 2.],
               [1., 0., 0.]])
    """
    from scipy.sparse import csr_array

    codes = {"user": np.asarray(user), "item": np.asarray(item)}
    values = np.ones(len(codes["user"])) if weight is None else np.asarray(weight, dtype=np.float64)
    if len({len(codes["user"]), len(codes["item"]), len(values)}) > 1:
        problem = f"there are {len(codes['user']):,} users, {len(codes['item']):,} items and {len(values):,} weights"
        raise ConfigurationError(problem, "give one of each a row")
    for (name, column), limit in zip(codes.items(), (users, items), strict=True):
        if len(column) and not np.issubdtype(column.dtype, np.integer):
            raise DataError(f"{name} codes have dtype {column.dtype}, in which large ids collide", "give int64 codes")
        wrong = np.flatnonzero((column < 0) | (column >= limit))
        if len(wrong):
            raise DataError(
                f"{name} code {column[wrong[0]]} at row {wrong[0]:,} is outside 0 to {limit - 1:,}",
                f"give `{name}s` as large as the store's number of {name}s",
            )
    lost = np.flatnonzero(~np.isfinite(values))
    if len(lost):
        raise DataError(f"the weight of row {lost[0]:,} is {values[lost[0]]}", "give finite weights")
    where = tuple(column.astype(np.int64) for column in codes.values())
    matrix = csr_array((values, where), shape=(users, items))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
