"""A log with the negatives that are drawn for it, as rows below its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.as_of import as_of
from lightning_mp.data.chosen_rows import chosen_places, joined, rows_at
from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.columns import Columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.key_buckets import key_buckets
from lightning_mp.data.label import EventLabel
from lightning_mp.data.needed_columns import mapped_column
from lightning_mp.data.negatives import Negatives
from lightning_mp.data.row_pieces import ROWS, column_array, column_pieces, row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.table_spool import TableSpool
from lightning_mp.data.taken_rows import taken_rows

Int64 = npt.NDArray[np.int64]


def with_negatives(
    table: pa.Table,
    user: Int64,
    item: Int64,
    time: Int64,
    *,
    items: pa.Array,
    specs: Sequence[FeatureSpec],
    columns: Columns,
    negatives: Negatives,
    label: EventLabel,
) -> tuple[pa.Table, Int64, Int64]:
    """Draw negatives.

    Args:
        table: Of the log.
        user: (N,) codes.
        item: (N,) codes.
        time: (N,) UTC microseconds.
        items: Code to key.
        specs: The features; those of items are looked up for the drawn item.
        columns: Where the log keeps what.
        negatives: How they are drawn.
        label: The kind that they are drawn beside.

    Returns:
        The table with the drawn rows below it, (M,) the row each was drawn for, and (M,) the items drawn.
    """
    positive = chosen_places(_is(table, label.event))
    basket, row = _baskets(table, user, time, negatives, columns), column_array(table["row"], np.int64)
    places, drawn = negatives.draw(*(rows_at(values, positive) for values in (row, item, time, basket)))
    origin = rows_at(positive, places)
    told = {spec.table_column(columns) for spec in specs if spec.role == "item" and spec.kind != "id"}
    of_item = {name for name in table.column_names if name in told}
    # What the log tells of an item stands in that item's own latest row, not in the row of the positive.
    latest = _latest(item, time, drawn, rows_at(time, origin)) if of_item else origin
    nothing = {"event", "value", "dwell"} & set(table.column_names)
    made: dict[str, pa.Array | pa.ChunkedArray] = {}
    for name in of_item - nothing:
        codes, words = column_codes(table[name])
        made[name] = _words(codes, latest, words)
    for name in nothing:
        shared = pa.nulls(min(len(drawn), ROWS), type=table.schema.field(name).type)
        made[name] = pa.chunked_array([shared.slice(0, piece.stop - piece.start) for piece in row_pieces(len(drawn))])
    # Each row has a number of its own: those of the drawn ones go on where the log ends.
    numbers, behind = scratch_array(len(drawn), np.int64), int(row.max()) + 1
    for piece in row_pieces(len(drawn)):
        numbers[piece] = np.arange(piece.start, piece.stop) + behind
    made |= {"row": pa.array(numbers), "item": _words(drawn, None, items)}
    copied = taken_rows(table.select([name for name in table.column_names if name not in made]), origin)
    below = pa.table({name: made[name] if name in made else copied[name] for name in table.column_names})
    return pa.concat_tables([table, below]), origin, drawn


def _is(table: pa.Table, kind: str) -> npt.NDArray[np.bool_]:
    found = scratch_array(table.num_rows, np.bool_)
    for place, piece in column_pieces(table["event"]):
        found[place] = pc.equal(piece, kind).to_numpy(zero_copy_only=False)
    return found


def _words(codes: npt.NDArray[np.integer], places: Int64 | None, words: pa.Array) -> pa.ChunkedArray:
    """The words of codes, or of those at some places; null where a code or a place is below 0."""
    spool, count = TableSpool(), len(codes if places is None else places)
    for piece in row_pieces(count):
        found = codes[piece] if places is None else np.where(places[piece] < 0, -1, codes[places[piece]])
        spool.add(pa.table({"word": words.take(pa.array(found, mask=found < 0))}))
    return spool.table()["word"]


def _latest(item: Int64, time: Int64, drawn: Int64, asked: Int64) -> Int64:
    """(M,) the latest row of each drawn item before its time; -1 where there is none."""
    latest = scratch_array(len(drawn), np.int64)
    for places in key_buckets(joined(item, drawn)):
        own, wanted = places[places < len(item)], places[places >= len(item)] - len(item)
        found = as_of(item[own], time[own], drawn[wanted], asked[wanted])
        latest[wanted] = np.where(found < 0, -1, own[found]) if len(own) else -1
    return latest


def _baskets(table: pa.Table, user: Int64, time: Int64, negatives: Negatives, columns: Columns) -> Int64:
    """(N,) codes; a basket belongs to one user, whatever its number."""
    numbers: npt.NDArray[np.integer] = time
    if negatives.basket is not None:
        numbers = column_codes(table[mapped_column(negatives.basket, columns)], np.int64)[0]
    baskets, count = scratch_array(len(user), np.int64), 0
    for places in key_buckets(user):
        own = np.unique(numbers[places], return_inverse=True)[1]
        found, baskets[places] = np.unique(user[places] * (len(own) + 1) + own, return_inverse=True)
        baskets[places] += count
        count += len(found)
    return baskets
