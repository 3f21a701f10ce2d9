"""Scored rows, gathered in the order they were scored in and given back in the order of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lightning_mp.data.store.feature_store import FeatureStore

_PIECE: Final = 1 << 16
TIME: Final = pa.timestamp("us", "UTC")
"""Type of the column `time`."""


class OrderedScores:
    """Scored rows, gathered as they come and given back in the order of the log, with the time of each.

    A store keeps its rows shuffled, so that they are scored out of order. What is gathered waits in a nameless file;
    memory holds the numbers of the rows and the times alone, some 40 bytes a row while they are sorted.

    Args:
        folder: For the file; it needs room for 24 bytes a row and 4 a score.
        store: That the rows are of.
    """

    def __init__(self, folder: Path, store: FeatureStore) -> None:
        self._store = store
        self._file = tempfile.TemporaryFile(dir=folder, prefix="lightning-mp-")  # noqa: SIM115  # closed by `close`
        self._dtype: np.dtype[Any] | None = None

    def add(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Gather a batch: `row`, `user` and `item` (B,) int64, and scores (B,) float32, the same names each time."""
        if self._dtype is None:
            kinds: dict[str, Any] = {"row": np.int64, "user": np.int64, "item": np.int64}
            self._dtype = np.dtype([(name, kinds.get(name, np.float32)) for name in columns])
        records = np.empty(len(columns["row"]), dtype=self._dtype)
        for name, values in columns.items():
            records[name] = values
        self._file.write(records.tobytes())

    def tables(self, keys: Mapping[str, pa.Array], version: int | None = None) -> Iterator[pa.Table]:
        """The rows by ascending number, some at a time: `row`, `time`, `user`, `item`, then the scores.

        Args:
            keys: The raw keys by code, of `user` and `item`.
            version: Of the store; the latest when left out.
        """
        self._file.flush()
        if self._dtype is None or not self._file.tell():
            return
        records = np.memmap(self._file, dtype=self._dtype, mode="r")
        order = np.argsort(records["row"], kind="stable")
        rows = np.asarray(records["row"])[order]
        times, known = self._times(rows, version)
        names = list(self._dtype.names or ())[3:]
        for start in range(0, len(order), _PIECE):
            piece = slice(start, start + _PIECE)
            some = records[order[piece]]
            scores = {name: np.ascontiguousarray(some[name]) for name in names}
            yield pa.table({
                "row": rows[piece],
                "time": pa.array(times[piece], mask=~known[piece]).cast(TIME),
                **{name: column.take(pa.array(some[name])) for name, column in keys.items()},
                **scores,
            })  # fmt: skip

    def close(self) -> None:
        """Give the file's room back."""
        self._file.close()

    def _times(self, rows: NDArray[np.int64], version: int | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Times of ascending rows, and which of them the store knows."""
        times, known = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
        splits = self._store.manifest_of(version).splits
        for split in sorted(splits, key=lambda name: name != "test"):  # what is predicted, as a rule
            if known.all():
                break
            table = self._store.load(split, version)
            there = table.row
            sort = np.argsort(there)
            place = sort[np.minimum(np.searchsorted(there, rows, sorter=sort), len(sort) - 1)] if len(sort) else sort
            if len(place):
                found = ~known & (there[place] == rows)
                times[found], known = table.time[place[found]], known | found
        return times, known
