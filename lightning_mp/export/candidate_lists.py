"""Lists to rank: each user beside many items, all values taken from real rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.schema import DENSE, INDEXED, FeatureSchema, Kind


def candidate_lists(
    schema: FeatureSchema, rows: EncodedRows, *, lists: int = 100, candidates: int = 100, seed: int = 0
) -> tuple[EncodedRows, int]:
    """Put users beside items, as a request to rank does.

    Within one list only item features vary, so its logits lie closer together than those of a log's rows do: this
    is where rounding changes an order.

    Args:
        schema: The features; those of role `item` vary within a list, the others are the user's row.
        rows: Real rows, encoded.
        lists: Lists at most.
        candidates: Items a list at most; distinct ones.
        seed: Of the draw.

    Returns:
        The rows, list after list, and the length of one list.
    """
    item_ids, item_dense = _item_columns(schema, INDEXED), _item_columns(schema, DENSE)
    rng = np.random.default_rng(seed)
    content = np.ascontiguousarray(np.hstack([rows.ids[:, item_ids].astype(np.float64), rows.dense[:, item_dense]]))
    if not content.shape[1]:  # no item features: a list is a draw of rows
        length = min(candidates, len(rows))
        chosen = rng.permutation(len(rows))[: len(rows) // length * length]
        return rows[chosen], length
    _, distinct = np.unique(content, axis=0, return_index=True)
    items = rng.permutation(distinct)[:candidates]
    users = rng.permutation(len(rows))[:lists]
    user_of, item_of = np.repeat(users, len(items)), np.tile(items, len(users))
    ids, dense = rows.ids[user_of], rows.dense[user_of]
    ids[:, item_ids] = rows.ids[item_of][:, item_ids]
    dense[:, item_dense] = rows.dense[item_of][:, item_dense]
    return EncodedRows(ids, dense), len(items)


def _item_columns(schema: FeatureSchema, kinds: tuple[Kind, ...]) -> NDArray[Any]:
    marks = [f.role == "item" for f in schema.of_kind(*kinds) for _ in range(f.width if f.kind in DENSE else 1)]
    return np.flatnonzero(np.array(marks, dtype=np.bool_))
