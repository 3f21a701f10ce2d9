"""FeatureStore: versions of a table on disk that keep float16 and are mapped, not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from lightning_mp.data.store.collect import OnNonfinite, check_mapping, collect, decided, described, mapped
from lightning_mp.data.store.collected_rows import OnOverflow
from lightning_mp.data.store.store_manifest import StoreManifest
from lightning_mp.data.store.store_versions import StoreVersions
from lightning_mp.data.store.upkeep import collect_again, extended_keys, next_row, remove_versions
from lightning_mp.data.store.version_writer import StorageFormat, VersionContents, write_version
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import FeatureSchema

Source = Any
"""A `pyarrow.Table`, or anything with `__arrow_c_stream__`, which is read once and never held whole."""
_MEMORY = 1 << 30


class FeatureStore(StoreVersions):
    """Versions of a table on disk that keep float16 and are mapped, not read.

    A folder with `LATEST` and one folder a version (`v000001`): `manifest.json`, the shards of each split, the
    vocabularies, and the raw user and item keys. A version appears whole or not at all and never changes afterwards.

    Args:
        path: The store's folder; nothing is touched before the first call.
        storage_format: Of what is written: `"binary"`, uncompressed Arrow IPC files, which are mapped; or `"parquet"`,
            one column a feature with float16 kept, for other readers; about half as large, decoded when loaded.
        dtype_mapping: Stored type of dense features by name, `"*"` for all others; it overrides the schema's.
            `"float16"`, `"float32"`, or `"auto"`: float16 where no number overflows or is flushed to zero and the mean
            relative error is at most 2^-10.

    Raises:
        ConfigurationError: An unknown format or type.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> rows = pa.table({"user_embedding": [[0.5, 1.0], [0.25, -2.0]], "price": [9.5, 12.0]})
        >>> store = FeatureStore(tempfile.mkdtemp(), storage_format="binary",
        ...                      dtype_mapping={"user_embedding": "float16", "price": "auto"})
        >>> store.write(rows, shuffle_seed=0)
        1
        >>> table = store.load(memory_map=True)
        >>> table.dense.dtype, table.dense[table.row.argsort()].tolist()
        (dtype('float16'), [[0.5, 1.0, 9.5], [0.25, -2.0, 12.0]])
    """

    def __init__(
        self,
        path: str | Path,
        storage_format: StorageFormat = "binary",
        dtype_mapping: Mapping[str, Literal["float16", "float32", "auto"]] | None = None,
    ) -> None:
        if storage_format not in get_args(StorageFormat):
            problem = f"`storage_format` must be 'binary' or 'parquet', got {storage_format!r}"
            raise ConfigurationError(problem, "leave it out")
        check_mapping(dtype_mapping or {})
        super().__init__(path)
        self.storage_format: StorageFormat = storage_format
        self.dtype_mapping: dict[str, str] = dict(dtype_mapping or {})

    def write(
        self,
        parts: Mapping[str, Source] | Source,
        *,
        schema: FeatureSchema | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        users: pa.Array | None = None,
        items: pa.Array | None = None,
        source: Mapping[str, Any] | None = None,
        on_overflow: OnOverflow = "raise",
        on_nonfinite: OnNonfinite = "raise",
        shuffle_seed: int = 0,
        memory_limit: int | None = None,
    ) -> int:
        """Write a new version and make it the latest; the older ones stay as they are.

        The rows of each split are shuffled once, so that reading blocks in order is as good as a global shuffle.

        Args:
            parts: Rows by split, or those of the split `"train"`: tables, or streams larger than memory. A column a
                feature, without nulls: vocabulary rows for indexed ones, floats for dense ones, labels and weights. Key
                columns, int64 and all optional: `@time` (UTC microseconds), `@row` (row of the source log), `@user` and
                `@item` (places in `users` and `items`).
            schema: What the columns are; left out, one is made from the types of one plain table (`describe`).
            vocabularies: By indexed feature.
            users: Raw user keys by code.
            items: Raw item keys by code.
            source: What the rows were made of; plain JSON, kept in the manifest.
            on_overflow: What to do with a float16 feature that holds a value beyond 65504 (65520 and up would become
                infinity): refuse, store that feature as float32, or clip to +-65504.
            on_nonfinite: Refuse NaN and infinity, or keep them, bit for bit.
            shuffle_seed: Of the order of the rows.
            memory_limit: Bytes that rows take in memory, 1 GiB when left out; what is more waits in a nameless file
                beside the store, and a shard has half as many bytes. 8 bytes a row are held besides.

        Returns:
            The new version's number.

        Raises:
            ConfigurationError: `dtype_mapping` names no dense feature, or a word is unknown.
            DataError: A value cannot be stored: null, NaN, infinite, too large, outside its vocabulary.
            SchemaError: A vocabulary is not the schema's.
            ArtifactError: No permission, no space, or another writer took the same version.
        """
        tables = dict(parts) if isinstance(parts, Mapping) else {"train": parts}
        words, limit = dict(vocabularies or {}), (memory_limit or _MEMORY) // 2
        if schema is None:
            schema, tables, words = described(tables, self.dtype_mapping)
        asked = mapped(schema, self.dtype_mapping)
        rows, tallies = collect(
            tables,
            asked,
            on_overflow=on_overflow,
            on_nonfinite=on_nonfinite,
            limit=limit,
            folder=self.path,
        )
        stored, clipped, notes = decided(asked, tallies, on_overflow)
        contents = VersionContents(
            schema=stored,
            vocabularies=words,
            users=users,
            items=items,
            source=source or {},
            clipped=clipped,
            notes=notes,
            shuffle_seed=shuffle_seed,
            storage_format=self.storage_format,
        )
        version = max((0, *self.versions())) + 1
        write_version(self.path, version, rows, contents, shard_bytes=limit)
        return version

    def append(
        self,
        parts: Mapping[str, Source] | Source,
        *,
        users: pa.Array | None = None,
        items: pa.Array | None = None,
        source: Mapping[str, Any] | None = None,
        on_overflow: Literal["raise", "clip"] = "raise",
        on_nonfinite: OnNonfinite = "raise",
        shuffle_seed: int = 0,
        memory_limit: int = _MEMORY,
    ) -> int:
        """Write a new version with the rows of the latest one, whose files it shares, and these.

        The new rows are shuffled among themselves, behind the old ones; `compact` mixes all. A global shuffle over
        several shards is about half as fast as over one.

        Args:
            parts: As for `write`, encoded with the store's vocabularies. Rows without `@row` are numbered on from the
                last one of their split.
            users: Raw user keys by code, which begin with the store's; left out, the store's.
            items: The same for items.
            source: What the new rows were made of; kept in the manifest under `appended`.
            on_overflow: Refuse or clip what the store's float16 features cannot hold.
            on_nonfinite: As for `write`.
            shuffle_seed: Of the order of the new rows.
            memory_limit: As for `write`.

        Returns:
            The new version's number.

        Raises:
            ConfigurationError: Keys do not begin with the store's, or a word is unknown.
            DataError: A value cannot be stored.
            ArtifactError: There is no store, or it cannot be written.
        """
        tables = dict(parts) if isinstance(parts, Mapping) else {"train": parts}
        manifest = self.manifest
        limit = memory_limit // 2
        rows, tallies = collect(
            tables, manifest.schema, on_overflow=on_overflow, on_nonfinite=on_nonfinite, limit=limit, folder=self.path,
            numbered_from={split: next_row(self.load(split, manifest.version)) for split in manifest.splits},
        )  # fmt: skip
        clipped = decided(manifest.schema, tallies, on_overflow)[1]
        contents = replace(
            self._contents(manifest),
            users=extended_keys(self.users(manifest.version), users, "users"),
            items=extended_keys(self.items(manifest.version), items, "items"),
            source={**manifest.source, "appended": [*manifest.source.get("appended", []), dict(source or {})]},
            clipped={
                name: manifest.clipped.get(name, 0) + clipped.get(name, 0) for name in {**manifest.clipped, **clipped}
            },
            shuffle_seed=shuffle_seed,
        )
        version = max(self.versions()) + 1
        older = (self.folder(manifest.version), manifest)
        write_version(self.path, version, rows, contents, shard_bytes=limit, older=older)
        return version

    def compact(self, *, shuffle_seed: int = 0, memory_limit: int = _MEMORY) -> int:
        """Write the rows of the latest version anew, shuffled together in as few shards as fit; the new number."""
        manifest, limit = self.manifest, memory_limit // 2
        share = limit // max(len(manifest.splits), 1)
        rows = {
            split: collect_again(self.load(split, manifest.version), split, limit=share, folder=self.path)
            for split in manifest.splits
        }
        contents = replace(self._contents(manifest), shuffle_seed=shuffle_seed, storage_format=self.storage_format)
        version = max(self.versions()) + 1
        write_version(self.path, version, rows, contents, shard_bytes=limit)
        return version

    def gc(self, *, keep: int = 3) -> tuple[int, ...]:
        """Remove all but the newest `keep` versions, never the latest; the numbers of the removed ones.

        Raises:
            ConfigurationError: `keep` is below 1.
            ArtifactError: A folder cannot be removed.
        """
        return remove_versions(self.path, self.versions(), keep, self.manifest.version)

    def _contents(self, manifest: StoreManifest) -> VersionContents:
        version = manifest.version
        return VersionContents(
            schema=manifest.schema,
            vocabularies={name: self.vocabulary(name, version) for name in manifest.vocabularies},
            users=self.users(version),
            items=self.items(version),
            source=manifest.source,
            clipped=manifest.clipped,
            notes=manifest.notes,
            shuffle_seed=manifest.shuffle_seed,
            storage_format=manifest.storage_format,  # type: ignore[arg-type]  # checked when it was read
        )
