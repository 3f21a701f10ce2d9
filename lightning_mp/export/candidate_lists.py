"""Lists to rank: each user beside many items, all values taken from real rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.schema import DENSE, INDEXED, FeatureSchema, Kind


def candidate_lists(
    item_columns: Mapping[str, NDArray[np.intp]],
    rows: EncodedRows,
    *,
    lists: int = 100,
    candidates: int = 100,
    seed: int = 0,
) -> tuple[EncodedRows, int]:
    """Put users beside items, as a request to rank does.

    Within one list only item features vary, so its logits lie closer together than those of a log's rows do: this
    is where rounding changes an order.

    Args:
        item_columns: By name of the input its columns that describe the item and vary within a list; all others are
            the user's row. See `item_columns`.
        rows: Real rows, encoded.
        lists: Lists at most.
        candidates: Items a list at most; distinct ones.
        seed: Of the draw.

    Returns:
        The rows, list after list, and the length of one list.
    """
    rng, feeds = np.random.default_rng(seed), rows.feeds
    parts = {name: columns for name, columns in item_columns.items() if len(columns) and name in feeds}
    if not parts:  # no item features: a list is a draw of rows
        length = min(candidates, len(rows))
        chosen = rng.permutation(len(rows))[: len(rows) // length * length]
        return rows[chosen], length
    flat = {name: feeds[name].reshape(len(rows), -1) for name in parts}
    content = np.hstack([flat[name][:, columns].astype(np.float64) for name, columns in parts.items()])
    _, distinct = np.unique(np.ascontiguousarray(content), axis=0, return_index=True)
    items = rng.permutation(distinct)[:candidates]
    users = rng.permutation(len(rows))[:lists]
    user_of, item_of = np.repeat(users, len(items)), np.tile(items, len(users))
    listed = rows[user_of]
    for name, columns in parts.items():
        taken = listed.feeds[name].reshape(len(listed), -1)  # a view: the rows were copied by the look-up above
        taken[:, columns] = flat[name][item_of][:, columns]
    return listed, len(items)


def item_columns(schema: FeatureSchema, feeds: Mapping[str, NDArray[Any]] | None = None) -> dict[str, NDArray[np.intp]]:
    """Columns of `ids`, `dense` and `multi` (flattened) whose features have the role `item`, and `target`.

    Args:
        schema: The features.
        feeds: The rows; without, `ids` and `dense` alone.
    """
    columns, feeds = {"ids": _item_columns(schema, INDEXED), "dense": _item_columns(schema, DENSE)}, feeds or {}
    if "multi" in feeds:
        marks = [feature.role == "item" for feature in schema.of_kind("multi_categorical")]
        columns["multi"] = np.flatnonzero(np.repeat(marks, feeds["multi"].shape[2]))
    if "target" in feeds:
        columns["target"] = np.array([0])
    return columns


def _item_columns(schema: FeatureSchema, kinds: tuple[Kind, ...]) -> NDArray[np.intp]:
    marks = [f.role == "item" for f in schema.of_kind(*kinds) for _ in range(f.width if f.kind in DENSE else 1)]
    return np.flatnonzero(np.array(marks, dtype=np.bool_))
