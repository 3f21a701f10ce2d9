from __future__ import annotations

import numpy as np

from lightning_mp.export.candidate_lists import candidate_lists, item_columns
from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.schema import FeatureSchema


def encoded(prepared, split="test") -> EncodedRows:
    table = prepared.store.load(split)
    return EncodedRows(table.ids.astype(np.int64), table.dense.astype(np.float32))


def test_only_item_features_vary_within_a_list_and_all_values_are_real(prepared):
    rows = encoded(prepared)
    lists, length = candidate_lists(item_columns(prepared.schema), rows, lists=7, candidates=11)
    assert (len(lists), length) == (77, 11)
    ids, dense = lists.ids.reshape(7, 11, 3), lists.dense.reshape(7, 11, 4)
    assert (ids[:, :, 0] == ids[:, :1, 0]).all()  # user
    assert (dense[:, :, 1:] == dense[:, :1, 1:]).all()  # dwell, age, rank
    assert (ids[:, :, 1] == ids[:1, :, 1]).all()  # the same items for everyone
    items = {(*row[:2], number) for row, number in zip(ids[0, :, 1:].tolist(), dense[0, :, 0].tolist(), strict=True)}
    assert len(items) == 11
    assert items <= set(zip(*rows.ids[:, 1:].T.tolist(), rows.dense[:, 0].tolist(), strict=True))


def test_a_small_store_gives_small_lists(prepared):
    lists, length = candidate_lists(item_columns(prepared.schema), encoded(prepared)[:3])
    assert length <= 3
    assert len(lists) == 3 * length


def test_without_item_features_a_list_is_a_draw_of_rows(prepared):
    features = tuple(f for f in prepared.schema.features if f.role != "item")
    schema, rows = FeatureSchema(features=features), encoded(prepared)
    fewer = EncodedRows(rows.ids[:, :1], rows.dense[:, 1:])
    lists, length = candidate_lists(item_columns(schema), fewer)
    assert (length, len(lists)) == (100, 300)
    assert len(candidate_lists(item_columns(schema), fewer[:42])[0]) == 42
