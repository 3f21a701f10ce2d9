"""StoreVersions: the versions of a feature store as they can be read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lightning_mp.data.store.feature_table import FeatureTable, ShardFile
from lightning_mp.data.store.keys_file import read_keys
from lightning_mp.data.store.store_manifest import LATEST, MANIFEST, StoreManifest
from lightning_mp.data.store.store_report import StoreDifference, StoreInfo, store_difference, store_info
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ArtifactError
from lightning_mp.schema import FeatureSchema

_PREPARE = "write it first: `FeatureStore.write`, or `lightning-mp prepare`"


class StoreVersions:
    """The versions of a feature store as they can be read; `FeatureStore` writes as well.

    Args:
        path: The store's folder; nothing is touched before the first call.

    Raises:
        ArtifactError: On use: there is no store, or a file is missing, cut short or of a newer format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

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
            memory_map: Map the files copy-on-write; otherwise read them into memory on first use.

        Raises:
            ArtifactError: There is no such version or split, or a file is missing or cut short.
        """
        folder, manifest = self.folder(version), self.manifest_of(version)
        manifest.check(folder, digests=False)
        if not manifest.splits.get(split):
            there = ", ".join(f"`{name}`" for name in manifest.splits)
            raise ArtifactError(f"`{folder}` has no split `{split}`; it has {there}", "name one of these")
        files = tuple(
            ShardFile(path=folder / shard.file, rows=shard.rows, size=manifest.files[shard.file]["size"])
            for shard in manifest.splits[split]
        )
        return FeatureTable(files, schema=manifest.schema, groups=manifest.groups, memory_map=memory_map)

    def verify(self, version: int | None = None) -> None:
        """Read every byte of a version and compare the digests.

        Raises:
            ArtifactError: A file is missing, cut short, or altered.
        """
        self.manifest_of(version).check(self.folder(version), digests=True)

    def info(self, version: int | None = None) -> StoreInfo:
        """What a version holds: rows, shards, bytes, types and why; `print` shows it."""
        return store_info(self.path, self.versions(), self.manifest_of(version))

    def diff(self, old: int, new: int | None = None) -> StoreDifference:
        """How a version (the latest one when left out) differs from an older one; `print` shows it."""
        return store_difference(self.manifest_of(old), self.manifest_of(new))

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

    def _keys(self, file: str, version: int | None) -> pa.Array:
        return read_keys(self.folder(version) / file, size=self.manifest_of(version).files[file]["size"])
