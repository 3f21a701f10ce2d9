"""CollectedRows: checked rows of one split, in memory and beyond a limit on disk, before their order is known."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from lightning_mp.data.store.float16_tally import Float16Tally
from lightning_mp.data.store.layout import KEYS, GroupName, features_of
from lightning_mp.data.store.matrices import (
    float16_values,
    float32_values,
    id_values,
    is_float16,
    key_values,
    overflow,
    refuse_overflow,
)
from lightning_mp.data.store.row_block import RowBlock
from lightning_mp.errors import ArtifactError
from lightning_mp.schema import Feature, FeatureSchema

OnOverflow = Literal["raise", "float32", "clip"]
Matrices = dict[str, NDArray[Any]]

_INDEXED: Final[tuple[GroupName, ...]] = ("ids", "multi", "history")
_PLAIN: Final[tuple[GroupName, ...]] = (*_INDEXED, "labels", "weight")


class CollectedRows:
    """Checked rows of one split, in memory and beyond a limit on disk, before their order is known.

    Dense columns are kept as float32 until it is decided what they are stored as; columns that are float16 already and
    shall stay so are kept bit for bit.

    Args:
        schema: As asked for.
        split: Name of the split.
        tallies: What float16 does to each dense feature, over all splits; added to.
        on_overflow: `"raise"` refuses a block with a number that its float16 feature cannot hold.
        limit: Bytes that may lie in memory; the rest goes to a nameless file.
        folder: Where that file lies; its nearest parent that is there.
    """

    def __init__(
        self,
        schema: FeatureSchema,
        split: str,
        *,
        tallies: dict[str, Float16Tally],
        on_overflow: OnOverflow,
        limit: int,
        folder: Path,
    ) -> None:
        self.schema = schema
        self.split = split
        self.rows = 0
        self._tallies = tallies
        self._on_overflow = on_overflow
        self._limit = limit
        self._folder = folder
        self._held: list[Matrices] = []
        self._bytes = 0
        self._file: Any = None
        self._places: list[dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]] = []

    def add(self, block: RowBlock) -> None:
        """Check some rows and keep them.

        Raises:
            DataError: A value cannot be stored.
            ArtifactError: The disk is full.
        """
        kept: Matrices = {"keys": key_values(block)}
        for group in _INDEXED:
            for feature in features_of(self.schema, group):
                kept[f"{group}/{feature.name}"] = id_values(block, feature)
        for group in ("labels", "weight"):
            for feature in features_of(self.schema, group):
                kept[f"{group}/{feature.name}"] = float32_values(block, feature)
        for feature in self.schema.dense:
            kept[f"dense/{feature.name}"] = self._dense(block, feature)
        self.keep(kept, block.table.num_rows)

    def keep(self, kept: Matrices, rows: int) -> None:
        """Keep some rows that are checked already, one matrix a feature."""
        self.rows += rows
        self._bytes += sum(matrix.nbytes for matrix in kept.values())
        self._held.append(kept)
        if self._bytes > self._limit:
            self._spill()

    def matrices(self) -> Iterator[Matrices]:
        """All blocks again, in the order they came in; as often as wanted."""
        for places in self._places:
            yield {name: self._read(*place) for name, place in places.items()}
        yield from self._held

    def _dense(self, block: RowBlock, feature: Feature) -> NDArray[Any]:
        if feature.stored_dtype == "float16" and is_float16(block, feature):
            return float16_values(block, feature)
        values = float32_values(block, feature)
        if feature.stored_dtype == "float16":
            if self._on_overflow == "raise":
                refuse_overflow(block, values, feature)
            self._tallies[feature.name].overflowed += int(overflow(values).sum())
        elif feature.stored_dtype == "auto":
            self._tallies[feature.name].add(values)
        return values

    def _spill(self) -> None:
        if self._file is None:
            there = next(folder for folder in (self._folder, *self._folder.absolute().parents) if folder.is_dir())
            # Without a name: whatever ends the process, nothing of it stays.
            self._file = tempfile.TemporaryFile(dir=there)  # noqa: SIM115  # closed by the finalizer below
            weakref.finalize(self, self._file.close)
        try:
            for kept in self._held:
                places = {}
                for name, matrix in kept.items():
                    places[name] = (self._file.tell(), matrix.shape, matrix.dtype)
                    self._file.write(np.ascontiguousarray(matrix).data)
                self._places.append(places)
            self._file.flush()
        except OSError as error:
            problem = f"`{self._folder}`: {error.strerror or error}, with {self.rows:,} rows waiting to be stored"
            raise ArtifactError(problem, "check the disk: `df -h` shows the space that is left") from error
        self._held, self._bytes = [], 0

    def _read(self, at: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        self._file.seek(at)
        count = int(np.prod(shape))
        return np.fromfile(self._file, dtype=dtype, count=count).reshape(shape)


def row_bytes(schema: FeatureSchema) -> int:
    """Bytes that a row takes in a store of this schema."""
    halves = sum(f.width for f in features_of(schema, "dense16"))
    singles = sum(f.width for group in ("dense32", *_PLAIN) for f in features_of(schema, group))
    return 2 * halves + 4 * singles + 8 * len(KEYS)
