"""Write one version of a store: whole, or not at all."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lightning_mp import __version__
from lightning_mp.artifacts import digest, new_folder, replacing
from lightning_mp.data.store.keys_file import write_batch, write_keys
from lightning_mp.data.store.layout import features_of, layout
from lightning_mp.data.store.matrices import fixed_size_lists, float32_values, matrix, overflow, refuse_overflow
from lightning_mp.data.store.store_manifest import LATEST, MANIFEST, Shard, StoreManifest
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import SchemaError
from lightning_mp.schema import FeatureSchema

OnOverflow = Literal["raise", "float32", "clip"]


def fit_to_float16(
    parts: Mapping[str, pa.Table], schema: FeatureSchema, on_overflow: OnOverflow
) -> tuple[FeatureSchema, dict[str, int]]:
    """Decide what becomes of float16 columns that hold more than float16 can.

    Args:
        parts: Rows by split.
        schema: As asked for.
        on_overflow: Refuse, store the feature as float32, or clip to +-65504.

    Returns:
        The schema as it will be stored, and the number of clipped values by feature.

    Raises:
        DataError: A value overflows and `on_overflow` is `"raise"`, or a value is not finite.
    """
    widened: set[str] = set()
    clipped: dict[str, int] = {}
    for feature in features_of(schema, "dense16"):
        for split, table in parts.items():
            values = float32_values(table, feature, split=split)
            count = int(overflow(values).sum())
            if count and on_overflow == "raise":
                refuse_overflow(values, table, feature, split=split)
            if count and on_overflow == "float32":
                widened.add(feature.name)
            if count and on_overflow == "clip":
                clipped[feature.name] = clipped.get(feature.name, 0) + count
    features = tuple(replace(f, stored_dtype="float32") if f.name in widened else f for f in schema.features)
    return replace(schema, features=features), clipped


def write_version(
    path: Path,
    version: int,
    parts: Mapping[str, pa.Table],
    *,
    schema: FeatureSchema,
    vocabularies: Mapping[str, Vocabulary],
    users: pa.Array | None,
    items: pa.Array | None,
    source: Mapping[str, Any],
    clipped: dict[str, int],
    shuffle_seed: int,
) -> StoreManifest:
    """Write one version of a store and make it the latest.

    Args:
        path: The store's folder.
        version: Its number; a folder of that number must not be there.
        parts: Rows by split.
        schema: As stored.
        vocabularies: By feature.
        users: Raw user keys by code.
        items: Raw item keys by code.
        source: Kept in the manifest.
        clipped: Kept in the manifest.
        shuffle_seed: Of the order of the rows within each split.

    Returns:
        The manifest as written.

    Raises:
        ArtifactError: The folder is there already (another writer), or cannot be written; nothing of it remains.
        DataError: A value cannot be stored.
        SchemaError: A vocabulary is not the one that the schema names.
    """
    _check_vocabularies(schema, vocabularies)
    groups = layout(schema)
    splits: dict[str, tuple[Shard, ...]] = {}
    with new_folder(path / f"v{version:06d}") as folder:
        for number, (split, table) in enumerate(parts.items()):
            # crc32 and not the split's place: the order of `parts` must not change the order of the rows.
            order = np.random.default_rng([shuffle_seed, zlib.crc32(split.encode())]).permutation(table.num_rows)
            columns = {g.name: fixed_size_lists(matrix(table, schema, g, order, split=split)) for g in groups}
            fields = [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
            shard = Shard(file=f"part-{number:05d}.arrow", rows=table.num_rows)
            write_batch(folder / shard.file, pa.record_batch(list(columns.values()), schema=pa.schema(fields)))
            splits[split] = (shard,)
        named = {name: f"vocabulary-{number:05d}.arrow" for number, name in enumerate(vocabularies)}
        for name, file in named.items():
            words = vocabularies[name]
            write_keys(folder / file, pa.array(words.entries, pa.string() if words.is_text else pa.int64()))
        keys = {"users.arrow": users, "items.arrow": items}
        for file, values in keys.items():
            if values is not None:
                write_keys(folder / file, values)
        manifest = StoreManifest(
            version=version,
            schema=schema,
            groups=groups,
            splits=splits,
            vocabularies=named,
            users=None if users is None else "users.arrow",
            items=None if items is None else "items.arrow",
            source=dict(source),
            clipped=clipped,
            shuffle_seed=shuffle_seed,
            files={f.name: {"size": f.stat().st_size, "sha256": digest(f)} for f in sorted(folder.iterdir())},
            versions={"lightning_mp": __version__, "numpy": np.__version__, "pyarrow": pa.__version__},
        )
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    with replacing(path / LATEST) as latest:
        latest.write(f"v{version:06d}\n".encode())
    return manifest


def _check_vocabularies(schema: FeatureSchema, vocabularies: Mapping[str, Vocabulary]) -> None:
    for name, words in vocabularies.items():
        feature = schema.feature(name)
        if (words.size, words.digest) != (feature.vocabulary_size, feature.vocabulary_digest or words.digest):
            raise SchemaError(
                f"the vocabulary of feature `{name}` has {words.size:,} rows and digest {words.digest[:12]}, the "
                f"schema says {feature.vocabulary_size:,} and {str(feature.vocabulary_digest)[:12]}",
                "give the vocabulary that the schema was made with",
            )
