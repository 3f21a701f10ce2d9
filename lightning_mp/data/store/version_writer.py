"""Write one version of a store: whole, or not at all."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lightning_mp import __version__
from lightning_mp.artifacts import digest, new_folder, replacing
from lightning_mp.data.row_pieces import row_pieces
from lightning_mp.data.scratch_array import scratch_array
from lightning_mp.data.shuffled_rows import shuffled_rows
from lightning_mp.data.store.collected_rows import CollectedRows, Matrices, row_bytes
from lightning_mp.data.store.keys_file import write_batch, write_keys
from lightning_mp.data.store.layout import Group, features_of, layout
from lightning_mp.data.store.matrices import fixed_size_lists
from lightning_mp.data.store.parquet_shard import write_parquet_shard
from lightning_mp.data.store.store_manifest import LATEST, MANIFEST, Shard, StoreManifest
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ArtifactError, SchemaError
from lightning_mp.float_formats import FLOAT16
from lightning_mp.schema import FeatureSchema

StorageFormat = Literal["binary", "parquet"]
_SUFFIX = {"binary": "arrow", "parquet": "parquet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionContents:
    """What a version of a store is made of, besides its rows.

    Args:
        schema: As stored.
        vocabularies: By feature.
        users: Raw user keys by code.
        items: Raw item keys by code.
        source: Kept in the manifest.
        clipped: Kept in the manifest.
        notes: Kept in the manifest.
        shuffle_seed: Of the order of the rows within each split.
        storage_format: Of the shards.
    """

    schema: FeatureSchema
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)
    users: pa.Array | None = None
    items: pa.Array | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    shuffle_seed: int = 0
    storage_format: StorageFormat = "binary"


def write_version(
    path: Path,
    version: int,
    rows: Mapping[str, CollectedRows],
    contents: VersionContents,
    *,
    shard_bytes: int,
    older: tuple[Path, StoreManifest] | None = None,
) -> StoreManifest:
    """Write one version of a store and make it the latest.

    Args:
        path: The store's folder.
        version: Its number; a folder of that number must not be there.
        rows: By split.
        contents: The rest.
        shard_bytes: Most bytes of a shard, which is put together in memory.
        older: Folder and manifest of a version whose shards this one has as well: the files are shared, not copied.

    Returns:
        The manifest as written.

    Raises:
        ArtifactError: The folder is there already (another writer), or cannot be written; nothing of it remains.
        SchemaError: A vocabulary is not the one that the schema names.
    """
    schema = contents.schema
    _check_vocabularies(schema, contents.vocabularies)
    _check_space(path, sum(collected.rows for collected in rows.values()) * row_bytes(schema))
    splits: dict[str, tuple[Shard, ...]] = dict(older[1].splits) if older else {}
    with new_folder(path / f"v{version:06d}") as folder:
        for shard in (shard for shards in splits.values() for shard in shards):
            share(older[0] / shard.file, folder / shard.file)  # type: ignore[index]  # shards are of an older version
        number = sum(map(len, splits.values()))
        for split, collected in rows.items():
            shards = []
            for matrices in _shards(collected, contents, max(shard_bytes // row_bytes(schema), 1)):
                shard = Shard(file=f"part-{number:05d}.{_SUFFIX[contents.storage_format]}", rows=len(matrices["keys"]))
                _write_shard(folder / shard.file, matrices, contents)
                shards.append(shard)
                number += 1
            splits[split] = (*splits.get(split, ()), *shards)
        named = {name: f"vocabulary-{place:05d}.arrow" for place, name in enumerate(contents.vocabularies)}
        for name, file in named.items():
            words = contents.vocabularies[name]
            write_keys(folder / file, pa.array(words.entries, pa.string() if words.is_text else pa.int64()))
        keys = {"users.arrow": contents.users, "items.arrow": contents.items}
        for file, values in keys.items():
            if values is not None:
                write_keys(folder / file, values)
        manifest = StoreManifest(
            version=version,
            schema=schema,
            groups=layout(schema),
            splits=splits,
            vocabularies=named,
            users=None if contents.users is None else "users.arrow",
            items=None if contents.items is None else "items.arrow",
            source=dict(contents.source),
            clipped=contents.clipped,
            notes=contents.notes,
            shuffle_seed=contents.shuffle_seed,
            storage_format=contents.storage_format,
            files={f.name: {"size": f.stat().st_size, "sha256": digest(f)} for f in sorted(folder.iterdir())},
            versions={"lightning_mp": __version__, "numpy": np.__version__, "pyarrow": pa.__version__},
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    with replacing(path / LATEST) as latest:
        latest.write(f"v{version:06d}\n".encode())
    return manifest


def share(old: Path, new: Path) -> None:
    """Give a committed file a second name; where the file system has no such names, copy it."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)


def _shards(collected: CollectedRows, contents: VersionContents, rows: int) -> Iterator[Matrices]:
    """The rows of a split in their shuffled order, one dictionary of matrices a shard."""
    groups = layout(contents.schema)
    # crc32 and not the split's place: the order of the splits must not change the order of the rows.
    draw = np.random.default_rng([contents.shuffle_seed, zlib.crc32(collected.split.encode())])
    order = shuffled_rows(collected.rows, draw)
    places = scratch_array(collected.rows, order.dtype)
    for piece in row_pieces(collected.rows):
        places[order[piece]] = np.arange(piece.start, piece.stop)
    for first in range(0, max(collected.rows, 1), rows):
        size = min(rows, collected.rows - first)
        shard = {group.name: np.empty((size, group.width), dtype=group.dtype) for group in groups}
        at = 0
        # All blocks are read once a shard, in their own order: that is how a disk is read fast.
        for kept in collected.matrices():
            block = places[at : at + len(kept["keys"])] - first
            at += len(block)
            inside = (block >= 0) & (block < size)
            whole = bool(inside.all())
            for group in groups:
                matrix = group_matrix(kept, group, contents.schema)
                shard[group.name][block if whole else block[inside]] = matrix if whole else matrix[inside]
        yield shard  # type: ignore[misc]  # every row of it is filled by now


def group_matrix(kept: Matrices, group: Group, schema: FeatureSchema) -> NDArray[Any]:
    """One group of a block, (rows, width). Dense numbers go float64 -> float32 -> float16, as a serving graph does."""
    if group.name == "keys":
        return kept["keys"]
    prefix = "dense" if group.name in ("dense16", "dense32") else group.name
    made = np.empty((len(kept["keys"]), group.width), dtype=group.dtype)
    at = 0
    for feature in features_of(schema, group.name):
        values = kept[f"{prefix}/{feature.name}"]
        if group.dtype == "float16" and values.dtype != np.float16:
            values = np.where(np.isinf(values), values, np.clip(values, -FLOAT16.largest, FLOAT16.largest))
        made[:, at : at + feature.width] = values
        at += feature.width
    return made


def _write_shard(path: Path, matrices: Matrices, contents: VersionContents) -> None:
    if contents.storage_format == "parquet":
        write_parquet_shard(path, matrices, contents.schema)
        return
    columns = {name: fixed_size_lists(matrix) for name, matrix in matrices.items()}
    fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    write_batch(path, pa.record_batch(list(columns.values()), schema=pa.schema(fields)))


def _check_space(path: Path, needed: int) -> None:
    there = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ArtifactError(
            f"the new version of `{path}` needs {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free there",
            "make room, for instance with `FeatureStore.gc()`",
        )


def _check_vocabularies(schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary]) -> None:
    for name, words in vocabularies.items():
        feature = schema.feature(name)
        if (words.size, words.digest) != (feature.vocabulary_size, feature.vocabulary_digest or words.digest):
            raise SchemaError(
                f"the vocabulary of feature `{name}` has {words.size:,} rows and digest {words.digest[:12]}, the "
                f"schema says {feature.vocabulary_size:,} and {str(feature.vocabulary_digest)[:12]}",
                "give the vocabulary that the schema was made with",
            )
