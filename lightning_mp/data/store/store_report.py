"""What a store holds and how two versions differ, as records that print as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lightning_mp.data.store.store_manifest import StoreManifest
from lightning_mp.schema import FeatureSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """What a version of a store holds.

    Args:
        path: The store's folder.
        version: Its number.
        versions: All that are there.
        storage_format: Of its shards.
        rows: By split.
        shards: Number of them by split.
        bytes: Of all its files.
        dtypes: Stored type of each feature.
        notes: Why, where it was measured.
        dense_bytes: Of a row's dense numbers.
        dense_bytes_float32: Of the same in float32.
    """

    path: Path
    version: int
    versions: tuple[int, ...]
    storage_format: str
    rows: dict[str, int]
    shards: dict[str, int]
    bytes: int
    dtypes: dict[str, str]
    notes: dict[str, str]
    dense_bytes: int
    dense_bytes_float32: int

    def __str__(self) -> str:
        rows = ", ".join(f"{split} {count:,} in {self.shards[split]}" for split, count in self.rows.items())
        lines = [
            f"{self.path}, version {self.version} of {len(self.versions)}, {self.storage_format}, {self.bytes:,} bytes",
            f"rows and shards: {rows}",
        ]
        if self.dense_bytes_float32:
            share = self.dense_bytes / self.dense_bytes_float32
            lines.append(f"dense numbers: {self.dense_bytes:,} bytes a row, {share:.0%} of float32")
        lines += [f"{name}: {self.notes.get(name, dtype)}" for name, dtype in self.dtypes.items()]
        return "\n".join(lines)


def store_info(path: Path, versions: tuple[int, ...], manifest: StoreManifest) -> StoreInfo:
    """What a version holds."""
    dense = manifest.schema.dense
    return StoreInfo(
        path=path,
        version=manifest.version,
        versions=versions,
        storage_format=manifest.storage_format,
        rows={split: manifest.rows(split) for split in manifest.splits},
        shards={split: len(shards) for split, shards in manifest.splits.items()},
        bytes=sum(entry["size"] for entry in manifest.files.values()),
        dtypes={feature.name: feature.stored_dtype for feature in manifest.schema.features},
        notes=manifest.notes,
        dense_bytes=sum(f.width * (2 if f.stored_dtype == "float16" else 4) for f in dense),
        dense_bytes_float32=sum(f.width * 4 for f in dense),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDifference:
    """How one version of a store differs from another; false where only their numbers do.

    Args:
        versions: The two.
        features: One line a feature that came, went or changed.
        rows: Rows by split, there and here, where they differ.
        shards_shared: Shards that both have.
        shards_added: Shards that only the second has.
        shards_removed: Shards that only the first has.
        source: Whether they were made from other logs or settings.
    """

    versions: tuple[int, int]
    features: tuple[str, ...]
    rows: dict[str, tuple[int, int]]
    shards_shared: int
    shards_added: int
    shards_removed: int
    source: bool

    def __bool__(self) -> bool:
        return bool(self.features or self.rows or self.shards_added or self.shards_removed or self.source)

    def __str__(self) -> str:
        first, second = self.versions
        if not self:
            return f"versions {first} and {second} hold the same"
        lines = [f"from version {first} to {second}", *self.features]
        lines += [f"{split}: {old:,} rows, now {new:,}" for split, (old, new) in self.rows.items()]
        lines.append(f"shards: {self.shards_shared} shared, {self.shards_added} new, {self.shards_removed} gone")
        return "\n".join([*lines, "made from another log or with other settings"] if self.source else lines)


def store_difference(old: StoreManifest, new: StoreManifest) -> StoreDifference:
    """How `new` differs from `old`."""
    mine, theirs = _shards(new), _shards(old)
    splits = dict.fromkeys([*old.splits, *new.splits])
    return StoreDifference(
        versions=(old.version, new.version),
        features=_features(old.schema, new.schema),
        rows={s: (old.rows(s), new.rows(s)) for s in splits if old.rows(s) != new.rows(s)},
        shards_shared=(mine & theirs).total(),
        shards_added=(mine - theirs).total(),
        shards_removed=(theirs - mine).total(),
        source=old.source.get("key") != new.source.get("key"),
    )


def _shards(manifest: StoreManifest) -> Counter[tuple[str, str]]:
    return Counter(
        (split, manifest.files[s.file]["sha256"]) for split, shards in manifest.splits.items() for s in shards
    )


def _features(old: FeatureSchema, new: FeatureSchema) -> tuple[str, ...]:
    before, now = ({feature.name: feature for feature in schema.features} for schema in (old, new))
    lines = [f"feature `{name}` is gone" for name in before if name not in now]
    lines += [f"feature `{name}` is new" for name in now if name not in before]
    for name in (name for name in before if name in now):
        one, other = FeatureSchema(features=(before[name],)), FeatureSchema(features=(now[name],))
        found = one.difference(other)
        if found is not None:
            lines.append(f"feature `{name}`: {found[1]} was {found[2]!r}, now {found[3]!r}")
    return tuple(lines)
