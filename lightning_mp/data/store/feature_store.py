"""FeatureStore: versions of a table on disk that keep float16 and are mapped, not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from lightning_mp.data.store.feature_table import FeatureTable
from lightning_mp.data.store.keys_file import read_keys
from lightning_mp.data.store.plain_table import describe
from lightning_mp.data.store.store_manifest import LATEST, MANIFEST, StoreManifest
from lightning_mp.data.store.version_writer import OnOverflow, fit_to_float16, write_version
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ArtifactError, ConfigurationError
from lightning_mp.schema import FeatureSchema

_PREPARE = "write it first: `FeatureStore.write`, or `lightning-mp prepare`"


class FeatureStore:
    """Versions of a table on disk that keep float16 and are mapped, not read.

    A folder with `LATEST` and one folder a version (`v000001`): `manifest.json`, one Arrow IPC file a split, the
    vocabularies, and the raw user and item keys. A version appears whole or not at all and never changes afterwards.

    Args:
        path: The store's folder; nothing is touched before the first call.
        storage_format: `"binary"`: Arrow IPC files, uncompressed.
        dtype_mapping: Stored type of dense features by name, `"float16"` or `"float32"`; it overrides the schema's.

    Raises:
        ConfigurationError: An unknown format or type.

    Example:
        >>> import tempfile, pyarrow as pa
        >>> rows = pa.table({"user_embedding": [[0.5, 1.0], [0.25, -2.0]], "price": [9.5, 12.0]})
        >>> store = FeatureStore(tempfile.mkdtemp(), storage_format="binary",
        ...                      dtype_mapping={"user_embedding": "float16", "price": "float16"})
        >>> store.write(rows, shuffle_seed=0)
        1
        >>> table = store.load(memory_map=True)
        >>> table.dense.dtype, table.dense[table.row.argsort()].tolist()
        (dtype('float16'), [[0.5, 1.0, 9.5], [0.25, -2.0, 12.0]])
    """

    def __init__(
        self,
        path: str | Path,
        storage_format: Literal["binary"] = "binary",
        dtype_mapping: Mapping[str, Literal["float16", "float32"]] | None = None,
    ) -> None:
        if storage_format != "binary":
            raise ConfigurationError(f"`storage_format` must be 'binary', got {storage_format!r}", "leave it out")
        for name, dtype in (dtype_mapping or {}).items():
            if dtype not in ("float16", "float32"):
                problem = f"`dtype_mapping` of `{name}` must be 'float16' or 'float32', got {dtype!r}"
                raise ConfigurationError(problem, "ids and labels have fixed types; leave them out")
        self.path = Path(path)
        self.storage_format = storage_format
        self.dtype_mapping = dict(dtype_mapping or {})

    @property
    def exists(self) -> bool:
        """Whether a version has been committed."""
        return (self.path / LATEST).is_file()

    @property
    def manifest(self) -> StoreManifest:
        """What the latest version says of itself."""
        return self.manifest_of()

    @property
    def schema(self) -> FeatureSchema:
        """Schema of the latest version."""
        return self.manifest.schema

    def versions(self) -> tuple[int, ...]:
        """Numbers of the versions that are there, ascending."""
        numbers = (folder.name[1:] for folder in self.path.glob("v[0-9]*") if (folder / MANIFEST).is_file())
        return tuple(sorted(int(number) for number in numbers if number.isdigit()))

    def folder(self, version: int | None = None) -> Path:
        """Folder of a version; the latest one when none is named.

        Raises:
            ArtifactError: There is no store, `LATEST` is damaged, or there is no such version.
        """
        if version is None:
            if not self.exists:
                raise ArtifactError(f"`{self.path}` holds no `{LATEST}`: it is not a feature store", _PREPARE)
            name = (self.path / LATEST).read_text(encoding="utf-8").strip()
            if not (name.startswith("v") and name[1:].isdigit()):
                raise ArtifactError(f"`{self.path / LATEST}` holds {name[:40]!r}, not a version", _PREPARE)
            version = int(name[1:])
        folder = self.path / f"v{version:06d}"
        if not (folder / MANIFEST).is_file():
            there = ", ".join(map(str, self.versions())) or "none"
            raise ArtifactError(f"`{self.path}` has no version {version}; there are: {there}", "name one of these")
        return folder

    def manifest_of(self, version: int | None = None) -> StoreManifest:
        """What a version says of itself; the latest one when none is named.

        Raises:
            ArtifactError: There is no such version, or its manifest is damaged or newer than this package.
        """
        return StoreManifest.from_json((self.folder(version) / MANIFEST).read_text(encoding="utf-8"))

    def load(self, split: str = "train", version: int | None = None, *, memory_map: bool = True) -> FeatureTable:
        """Open one split. Every file's size is checked; no row is read.

        Args:
            split: `"train"`, `"validation"` or `"test"`.
            version: Number of a version; the latest one when left out.
            memory_map: Map the file copy-on-write; otherwise read it into memory on first use.

        Raises:
            ArtifactError: There is no such version or split, or a file is missing or cut short.
        """
        folder, manifest = self.folder(version), self.manifest_of(version)
        manifest.check(folder, digests=False)
        shards = manifest.splits.get(split, ())
        if len(shards) != 1:
            there = ", ".join(f"`{name}`" for name in manifest.splits)
            raise ArtifactError(f"`{folder}` has no split `{split}`; it has {there}", "name one of these")
        return FeatureTable(
            folder / shards[0].file,
            schema=manifest.schema,
            groups=manifest.groups,
            rows=shards[0].rows,
            size=manifest.files[shards[0].file]["size"],
            memory_map=memory_map,
        )

    def verify(self, version: int | None = None) -> None:
        """Read every byte of a version and compare the digests.

        Raises:
            ArtifactError: A file is missing, cut short, or altered.
        """
        self.manifest_of(version).check(self.folder(version), digests=True)

    def vocabulary(self, name: str, version: int | None = None) -> Vocabulary:
        """The vocabulary of an indexed feature.

        Raises:
            ArtifactError: It has none, or its file is damaged.
        """
        files = self.manifest_of(version).vocabularies
        if name not in files:
            there = ", ".join(f"`{n}`" for n in files) or "none"
            raise ArtifactError(f"`{self.path}` has no vocabulary of `{name}`; there are: {there}", "name one of these")
        return Vocabulary(self._keys(files[name], version).to_pylist())

    def users(self, version: int | None = None) -> pa.Array | None:
        """Raw user keys by code, those unseen in training included; `None` for a store without users."""
        file = self.manifest_of(version).users
        return None if file is None else self._keys(file, version)

    def items(self, version: int | None = None) -> pa.Array | None:
        """Raw item keys by code, those unseen in training included; `None` for a store without items."""
        file = self.manifest_of(version).items
        return None if file is None else self._keys(file, version)

    def write(
        self,
        parts: Mapping[str, pa.Table] | pa.Table,
        *,
        schema: FeatureSchema | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        users: pa.Array | None = None,
        items: pa.Array | None = None,
        source: Mapping[str, Any] | None = None,
        on_overflow: OnOverflow = "raise",
        shuffle_seed: int = 0,
    ) -> int:
        """Write a new version and make it the latest; the older ones stay as they are.

        The rows of each split are shuffled once, so that reading blocks in order is as good as a global shuffle.

        Args:
            parts: Rows by split, or one table, which becomes the split `"train"`. A column a feature, without nulls:
                vocabulary rows for indexed ones, floats for dense ones, labels and weights. Key columns, int64 and all
                optional: `@time` (UTC microseconds), `@row` (row of the source log), `@user` and `@item` (places in
                `users` and `items`).
            schema: What the columns are; left out, one is made from the types of one plain table (`describe`).
            vocabularies: By indexed feature.
            users: Raw user keys by code.
            items: Raw item keys by code.
            source: What the rows were made of; plain JSON, kept in the manifest.
            on_overflow: What to do with a float16 feature that holds a value beyond 65504 (65520 and up would become
                infinity): refuse, store that feature as float32, or clip to +-65504.
            shuffle_seed: Of the order of the rows.

        Returns:
            The new version's number.

        Raises:
            ConfigurationError: `dtype_mapping` names no dense feature, or `on_overflow` is unknown.
            DataError: A value cannot be stored: null, NaN, infinite, too large, outside its vocabulary.
            SchemaError: A vocabulary is not the schema's.
            ArtifactError: No permission, no space, or another writer took the same version.
        """
        if on_overflow not in ("raise", "float32", "clip"):
            raise ConfigurationError(
                f"`on_overflow` must be 'raise', 'float32' or 'clip', got {on_overflow!r}", "leave it out"
            )
        tables = {"train": parts} if isinstance(parts, pa.Table) else dict(parts)
        words = dict(vocabularies or {})
        if schema is None:
            if list(tables) != ["train"]:
                raise ConfigurationError("several splits need a `schema`", "pass `schema`, or one plain table")
            schema, tables["train"], words = describe(tables["train"], self.dtype_mapping)
        schema, clipped = fit_to_float16(tables, self._mapped(schema), on_overflow)
        version = max((0, *self.versions())) + 1
        write_version(
            self.path,
            version,
            tables,
            schema=schema,
            vocabularies=words,
            users=users,
            items=items,
            source=source or {},
            clipped=clipped,
            shuffle_seed=shuffle_seed,
        )
        return version

    def _mapped(self, schema: FeatureSchema) -> FeatureSchema:
        names = [feature.name for feature in schema.dense]
        for name in self.dtype_mapping:
            if name not in names:
                near = get_close_matches(name, names, 1) or names[:1]
                hint = f"did you mean `{near[0]}`?" if near else "leave `dtype_mapping` out"
                raise ConfigurationError(f"`dtype_mapping` names `{name}`, which is no dense feature", hint)
        mapped = (replace(f, stored_dtype=self.dtype_mapping.get(f.name, f.stored_dtype)) for f in schema.features)
        return replace(schema, features=tuple(mapped))

    def _keys(self, file: str, version: int | None) -> pa.Array:
        return read_keys(self.folder(version) / file, size=self.manifest_of(version).files[file]["size"])
