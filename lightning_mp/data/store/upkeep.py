"""Keeping a store: rows of a version again, and versions that are no longer wanted."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from lightning_mp.artifacts import sweep
from lightning_mp.data.store.collected_rows import CollectedRows, Matrices
from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.data.store.layout import KEYS, features_of
from lightning_mp.data.store.row_block import ROWS
from lightning_mp.errors import ArtifactError, ConfigurationError


def collect_again(table: FeatureTable, split: str, *, limit: int, folder: Path) -> CollectedRows:
    """The rows of a split as they came in, for another order.

    Args:
        table: The split.
        split: Its name.
        limit: Bytes that may lie in memory.
        folder: Of the store.
    """
    rows = CollectedRows(table.schema, split, tallies={}, on_overflow="raise", limit=limit, folder=folder)
    for place, keys in enumerate(table.shards("keys")):
        for first in range(0, len(keys), ROWS):
            kept: Matrices = {"keys": keys[first : first + ROWS].copy()}
            for group in ("ids", "multi", "history", "dense16", "dense32", "labels", "weight"):
                matrix, at = table.shards(group)[place], 0
                for feature in features_of(table.schema, group):
                    prefix = "dense" if group.startswith("dense") else group
                    kept[f"{prefix}/{feature.name}"] = matrix[first : first + ROWS, at : at + feature.width].copy()
                    at += feature.width
            rows.keep(kept, len(kept["keys"]))
    return rows


def next_row(table: FeatureTable) -> int:
    """The row of the source behind the last one of a split.

    Args:
        table: The split.
    """
    return max((int(keys[:, KEYS.index("row")].max()) for keys in table.shards("keys") if len(keys)), default=-1) + 1


def remove_versions(path: Path, versions: Sequence[int], keep: int, latest: int) -> tuple[int, ...]:
    """Remove all but the newest versions; the latest always stays.

    A folder first loses its name, so that a kill leaves no half version. Rows that a kept version shares with a removed
    one stay: they are the same file under two names.

    Args:
        path: The store's folder.
        versions: All that are there, ascending.
        keep: How many stay.
        latest: The one that `LATEST` names.

    Returns:
        Numbers of the removed versions.

    Raises:
        ConfigurationError: `keep` is below 1.
        ArtifactError: A folder cannot be removed.
    """
    if keep < 1:
        raise ConfigurationError(f"`keep` must be at least 1, got {keep}", "the latest version always stays")
    removed = tuple(version for version in versions[:-keep] if version != latest)
    try:
        for version in removed:
            nameless = path / f".lightning_mp-tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}"
            (path / f"v{version:06d}").rename(nameless)
            shutil.rmtree(nameless)
    except OSError as error:
        raise ArtifactError(f"`{error.filename}`: {error.strerror}", "give a folder you may write to") from error
    sweep(path)
    return removed


def extended_keys(old: pa.Array | None, new: pa.Array | None, name: str) -> pa.Array | None:
    """The new keys where there are any: they must begin with the old ones, whose codes stand in rows already.

    Raises:
        ConfigurationError: They do not.
    """
    if new is None:
        return old
    if old is not None and not new.slice(0, len(old)).equals(old):
        raise ConfigurationError(
            f"`{name}` does not begin with the store's {len(old):,} keys", "put new keys at the end"
        )
    return new
