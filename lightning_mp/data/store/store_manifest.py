"""What a version of a store says of itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lightning_mp.artifacts import check_file
from lightning_mp.data.store.layout import Group
from lightning_mp.errors import ArtifactError
from lightning_mp.schema import FeatureSchema

FORMAT = 1
MANIFEST = "manifest.json"
LATEST = "LATEST"
_AGAIN = "write the store again with `lightning-mp prepare`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of rows: Arrow IPC with one record batch, or Parquet.

    Args:
        file: Its name in the version's folder.
        rows: Rows it holds.
    """

    file: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreManifest:
    """The truth about one version of a store.

    Args:
        version: Number of the version; its folder is `v` and six digits.
        schema: The features as they are stored.
        groups: The matrices of every shard.
        splits: Shards by split.
        vocabularies: Arrow file of each vocabulary, by feature.
        users: Arrow file of the raw user keys by code, `None` without users.
        items: Arrow file of the raw item keys by code, `None` without items.
        source: What the rows were made of, as the writer described it.
        notes: Why each dense feature has its type, where it was measured.
        clipped: Values brought down to the largest float16, by feature; only with `on_overflow="clip"`.
        shuffle_seed: Seed of the order that the rows of each split were written in.
        storage_format: `"binary"`: Arrow IPC, uncompressed; `"parquet"`.
        files: Size in bytes and sha256 of every other file of the folder, by name.
        versions: Packages that wrote it.
        format: Of this record; a newer one is refused.
    """

    version: int
    schema: FeatureSchema
    groups: tuple[Group, ...]
    splits: dict[str, tuple[Shard, ...]]
    vocabularies: dict[str, str] = field(default_factory=dict)
    users: str | None = None
    items: str | None = None
    source: dict[str, Any] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    shuffle_seed: int = 0
    storage_format: str = "binary"
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def rows(self, split: str) -> int:
        """Rows of a split; 0 for one that is not there."""
        return sum(shard.rows for shard in self.splits.get(split, ()))

    def to_json(self) -> str:
        """Indented JSON with sorted keys; the schema's digest stands beside the schema."""
        record = {**asdict(self), "schema": json.loads(self.schema.to_json()), "schema_digest": self.schema.digest}
        return json.dumps(record, indent=2, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> StoreManifest:
        """Read what `to_json` wrote.

        Raises:
            ArtifactError: It is not a store's manifest, is of a newer format, or its schema was altered.
        """
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ArtifactError(f"the store's `{MANIFEST}` is not JSON: {error}", _AGAIN) from error
        if not isinstance(record, dict) or not isinstance(record.get("format"), int):
            raise ArtifactError(f"the store's `{MANIFEST}` names no format", _AGAIN)
        if record["format"] > FORMAT:
            raise ArtifactError(
                f"the store is of format {record['format']}, this package reads up to {FORMAT}",
                "install the version of lightning-mp that wrote it",
            )
        try:
            digest = record.pop("schema_digest")
            record["schema"] = FeatureSchema.from_json(json.dumps(record["schema"]))
            record["groups"] = tuple(Group(**{**g, "columns": tuple(g["columns"])}) for g in record["groups"])
            record["splits"] = {
                split: tuple(Shard(**shard) for shard in shards) for split, shards in record["splits"].items()
            }
            manifest = cls(**record)
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"the store's `{MANIFEST}` lacks a field or holds an unknown one: {error}", _AGAIN
            ) from error
        if manifest.schema.digest != digest:
            raise ArtifactError(f"the schema in the store's `{MANIFEST}` does not match its digest", _AGAIN)
        return manifest

    def check(self, folder: Path, *, digests: bool) -> None:
        """Compare every file of `folder` with its size, and with its digest when asked to.

        Raises:
            ArtifactError: One is missing, cut short, or altered, or lies outside the folder.
        """
        for name, entry in self.files.items():
            if Path(name).name != name:
                raise ArtifactError(
                    f"`{folder}`: the manifest names `{name}`, which leaves the folder", "do not use it"
                )
            check_file(folder / name, size=entry["size"], sha256=entry["sha256"] if digests else None)
