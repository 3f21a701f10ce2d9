"""Which test rows have new users, new items, items of the head or of the tail."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_mp.errors import ConfigurationError

Mask = NDArray[np.bool_]


def row_slices(
    train_user: ArrayLike, train_item: ArrayLike, user: ArrayLike, item: ArrayLike, *, head_share: float = 0.2
) -> dict[str, Mask]:
    """Masks of the rows to evaluate, by what training knew of their user and item.

    Args:
        train_user: (N,) integer codes of the users of the training rows.
        train_item: (N,) codes of their items.
        user: (M,) codes of the users of the rows to evaluate.
        item: (M,) codes of their items. For `full_ranking(item_slices=...)` give all items, and any known users.
        head_share: Share of the known items, by number of training rows, that are the head; the others are the tail.

    Returns:
        (M,) masks: `"new users"` and `"known users"`; `"new items"`, `"head items"` and `"tail items"`.

    Raises:
        ConfigurationError: `head_share` is not between 0 and 1.

    Example:
        >>> slices = row_slices([1, 1, 2], [5, 5, 6], [1, 3, 2], [5, 6, 7], head_share=0.5)
        >>> {name: mask.tolist() for name, mask in slices.items()}["tail items"]
        [False, True, False]
    """
    if not 0 < head_share < 1:
        raise ConfigurationError(f"`head_share` must be between 0 and 1, got {head_share!r}", "use 0.2")
    users, items = np.asarray(user, dtype=np.int64), np.asarray(item, dtype=np.int64)
    known, counts = np.unique(np.asarray(train_item, dtype=np.int64), return_counts=True)
    head = known[np.argsort(-counts, kind="stable")[: int(np.ceil(head_share * len(known)))]]
    new_user, known_item, in_head = ~np.isin(users, train_user), np.isin(items, known), np.isin(items, head)
    return {
        "new users": new_user,
        "known users": ~new_user,
        "new items": ~known_item,
        "head items": in_head,
        "tail items": known_item & ~in_head,
    }
