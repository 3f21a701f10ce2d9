"""Missing categories filled by the mode of their group, the groups from the narrowest to all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightning_mp.data.column_codes import column_codes
from lightning_mp.data.row_pieces import column_pieces, row_pieces
from lightning_mp.data.table_spool import TableSpool

Codes = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
PATH: Final = "."
"""Parts the steps of a path such as `furniture.bedroom.bed`."""
ALL_ROWS: Final = "all rows"
NOTHING: Final = "nothing: it stays unknown"


@dataclass(frozen=True, slots=True)
class ModeFill:
    """What a missing value becomes, by the groups that it may belong to.

    Attributes:
        groups: By column, in the order in which they are asked: the mode of each of the column's values, and how many
            steps of a path it was found up; values that have no mode, nor any path above them, are left out.
        overall: The mode of all training rows; `None` where they hold no value at all.
    """

    groups: dict[str, dict[Any, tuple[Any, int]]]
    overall: Any

    def to_record(self) -> dict[str, Any]:
        """As plain JSON, which `from_record` reads."""
        groups = [
            {"column": column, "values": list(modes), "modes": [mode for mode, _ in modes.values()],
             "steps_up": [up for _, up in modes.values()]}
            for column, modes in self.groups.items()
        ]  # fmt: skip
        return {"groups": groups, "overall": self.overall}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ModeFill:
        """Read what `to_record` wrote."""
        groups = {
            entry["column"]: {
                value: (mode, up)
                for value, mode, up in zip(entry["values"], entry["modes"], entry["steps_up"], strict=True)
            }
            for entry in record["groups"]
        }
        return cls(groups=groups, overall=record["overall"])


def fit_modes(values: pa.ChunkedArray, groups: Mapping[str, pa.ChunkedArray], training: Mask) -> ModeFill:
    """Find the modes on the training part: the most frequent value, of equally frequent ones the smallest.

    Args:
        values: (N,) text or integers, null where missing.
        groups: (N,) text or integers each, from the narrowest on. Text is a path too: a value without a mode takes that
            of the path above it, which counts all rows below it.
        training: (N,) rows that are counted.

    Example:
        >>> fill = fit_modes(pa.chunked_array([["x", "y", "y", None]]),
        ...                  {"category": pa.chunked_array([["a", "b.c", "b.d", "b.e"]])}, np.ones(4, dtype=bool))
        >>> fill.groups["category"]["b.e"], fill.overall
        (('y', 1), 'y')
    """
    codes, distinct = column_codes(values)
    words = distinct.to_pylist()
    rank = np.argsort(np.argsort(np.array(words, dtype=object))) if words else np.zeros(0, dtype=np.int64)
    nowhere = np.zeros(1, dtype=np.int64)
    counts = np.zeros(len(words), dtype=np.int64)
    for piece in row_pieces(len(codes)):
        counts += np.bincount(codes[piece][training[piece] & (codes[piece] >= 0)], minlength=len(words))
    seen = np.flatnonzero(counts)
    overall = _modes(np.repeat(nowhere, len(seen)), seen, counts[seen], rank)
    found = {column: _by_group(given, codes, training, rank, words) for column, given in groups.items()}
    return ModeFill(groups=found, overall=words[overall[0]] if overall else None)


def fill_modes(
    fill: ModeFill, values: pa.ChunkedArray, groups: Mapping[str, pa.ChunkedArray]
) -> tuple[pa.ChunkedArray, dict[str, int]]:
    """Fill missing values.

    Args:
        fill: As fitted.
        values: (N,) null where missing.
        groups: (N,) each, as in `fit_modes`.

    Returns:
        (N,) filled, null only where there was not one value to fit on; and how many were filled from where.
    """
    # By column first, as they are asked, whichever piece of the rows meets one first.
    counts: dict[str, Counter[str]] = {column: Counter() for column in fill.groups}
    rest, spool = Counter[str](), TableSpool()
    for place, piece in column_pieces(values):
        open_rows = np.flatnonzero(piece.is_null().to_numpy(zero_copy_only=False))
        filled: dict[int, Any] = {}
        for column, modes in fill.groups.items():
            given = groups[column].slice(place.start, len(piece)).take(pa.array(open_rows)).to_pylist()
            still = []
            for row, value in zip(open_rows.tolist(), given, strict=True):
                if value not in modes:
                    still.append(row)
                    continue
                filled[row], up = modes[value]
                counts[column][column if not up else f"{column}, {up} up"] += 1
            open_rows = np.array(still, dtype=np.int64)
        if len(open_rows):
            rest[NOTHING if fill.overall is None else ALL_ROWS] += len(open_rows)
            filled |= dict.fromkeys(open_rows.tolist(), fill.overall)
        stand_ins = pa.array([filled[row] for row in sorted(filled)], type=values.type)
        spool.add(pa.table({"filled": pc.replace_with_mask(piece, piece.is_null(), stand_ins)}))
    whole = spool.table()["filled"] if len(values) else values
    return whole, {name: count for found in (*counts.values(), rest) for name, count in found.items()}


def empty_groups(values: pa.ChunkedArray, group: pa.ChunkedArray) -> tuple[int, int]:
    """Groups in which every row misses its value, and all groups: the former can only be filled from outside.

    Args:
        values: (N,) null where missing.
        group: (N,) null where a row belongs to none.

    Example:
        >>> empty_groups(pa.chunked_array([["x", None, None]]), pa.chunked_array([["a", "a", "b"]]))
        (1, 2)
    """
    codes, words = column_codes(group)
    filled = np.zeros(len(words) + 1, dtype=bool)
    for place, piece in column_pieces(values):
        filled[codes[place][piece.is_valid().to_numpy(zero_copy_only=False)]] = True
    return int(np.count_nonzero(~filled[:-1])), len(words)


def _by_group(
    column: pa.ChunkedArray, codes: Codes, training: Mask, rank: Int64, words: list[Any]
) -> dict[Any, tuple[Any, int]]:
    group_codes, distinct = column_codes(column)
    group_words = distinct.to_pylist()
    paths = [_paths(word) for word in group_words]
    place = {path: index for index, path in enumerate(dict.fromkeys(path for steps in paths for path in steps))}
    own, value, count = _pairs(group_codes, codes, training, width=len(words))
    depths: list[tuple[Int64, Int64, Int64]] = []
    for depth in range(max((len(steps) for steps in paths), default=0)):
        # A row counts for its own value and for every path above it.
        above = np.array([place[steps[depth]] if depth < len(steps) else -1 for steps in paths], dtype=np.int64)
        here = above[own] >= 0
        depths.append((above[own][here], value[here], count[here]))
    modes: dict[int, int] = {}
    if depths:
        group, code, weight = (np.concatenate(part) for part in zip(*depths, strict=True))
        modes = _modes(group, code, weight, rank)
    found = {}
    for word, steps in zip(group_words, paths, strict=True):
        for up, path in enumerate(steps):
            if place[path] in modes:
                found[word] = (words[modes[place[path]]], up)
                break
    return found


def _pairs(groups: Codes, codes: Codes, training: Mask, *, width: int) -> tuple[Int64, Int64, Int64]:
    """The distinct pairs of group and value among the training rows that have both, and how many rows have each."""
    pairs, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for piece in row_pieces(len(codes)):
        inside = training[piece] & (codes[piece] >= 0) & (groups[piece] >= 0)
        keys = groups[piece][inside].astype(np.int64) * width + codes[piece][inside]
        found, count = np.unique(keys, return_counts=True)
        pairs, place = np.unique(np.concatenate([pairs, found]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, count]), minlength=len(pairs)).astype(np.int64)
    return pairs // max(width, 1), pairs % max(width, 1), counts


def _paths(word: Any) -> list[Any]:
    """A path and those above it, the narrowest first."""
    if not isinstance(word, str):
        return [word]
    parts = word.split(PATH)
    return [PATH.join(parts[:length]) for length in range(len(parts), 0, -1)]


def _modes(groups: Int64, codes: Int64, counts: Int64, rank: Int64) -> dict[int, int]:
    """Most frequent code of each group; of equally frequent ones that of the smallest rank."""
    if not len(groups):
        return {}
    width = int(codes.max()) + 1
    pairs, place = np.unique(groups * width + codes, return_inverse=True)
    total = np.bincount(place, counts).astype(np.int64)
    group, code = pairs // width, pairs % width
    order = np.lexsort((rank[code], -total, group))
    first = order[np.diff(group[order], prepend=-1) > 0]
    return dict(zip(group[first].tolist(), code[first].tolist(), strict=True))
