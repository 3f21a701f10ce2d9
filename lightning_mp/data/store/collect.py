"""From tables and streams to checked rows, and to what each dense column is stored as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from lightning_mp.data.store.collected_rows import CollectedRows, OnOverflow
from lightning_mp.data.store.float16_tally import Float16Tally
from lightning_mp.data.store.plain_table import describe
from lightning_mp.data.store.row_block import row_blocks
from lightning_mp.data.vocabulary import Vocabulary
from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import FeatureSchema

OnNonfinite = Literal["raise", "keep"]
EVERY = "*"
"""In a `dtype_mapping`: every dense feature that it does not name."""


def described(
    parts: Mapping[str, Any], dtype_mapping: Mapping[str, str]
) -> tuple[FeatureSchema, dict[str, Any], dict[str, Vocabulary]]:
    """A schema for rows that come without one.

    Args:
        parts: One table, or one stream of numbers, as the split `"train"`.
        dtype_mapping: Stored types by column.

    Raises:
        ConfigurationError: There are several splits, or a stream has categories, whose vocabulary only a schema knows.
        DataError: A column's type has no place in a store.
    """
    if list(parts) != ["train"]:
        raise ConfigurationError("several splits need a `schema`", "pass `schema`, or one plain table")
    source = parts["train"]
    if isinstance(source, pa.Table) or not hasattr(source, "__arrow_c_stream__"):
        schema, table, words = describe(source, dtype_mapping)
        return schema, {"train": table}, words
    reader = pa.RecordBatchReader.from_stream(source)
    first = next(iter(reader), None)
    start = reader.schema.empty_table() if first is None else pa.Table.from_batches([first])
    schema, _, words = describe(start, dtype_mapping)
    if words:
        name = next(iter(words))
        problem = f"column `{name}` of the stream holds categories, whose vocabulary a stream does not tell"
        raise ConfigurationError(problem, "pass `schema` and `vocabularies`, or a table")
    batches = reader if first is None else chain([first], reader)
    return schema, {"train": pa.RecordBatchReader.from_batches(reader.schema, batches)}, {}


def check_mapping(dtype_mapping: Mapping[str, str]) -> None:
    """Refuse a stored type that is none.

    Raises:
        ConfigurationError: A type is not `"float16"`, `"float32"` or `"auto"`.
    """
    for name, dtype in dtype_mapping.items():
        if dtype not in ("float16", "float32", "auto"):
            problem = f"`dtype_mapping` of `{name}` must be 'float16', 'float32' or 'auto', got {dtype!r}"
            raise ConfigurationError(problem, "ids and labels have fixed types; leave them out")


def mapped(schema: FeatureSchema, dtype_mapping: Mapping[str, str]) -> FeatureSchema:
    """The schema with the types that `dtype_mapping` asks for.

    Raises:
        ConfigurationError: It names no dense feature.
    """
    names = [feature.name for feature in schema.dense]
    for name in dtype_mapping:
        if name not in (*names, EVERY):
            near = get_close_matches(name, names, 1) or names[:1]
            hint = f"did you mean `{near[0]}`?" if near else "leave `dtype_mapping` out"
            raise ConfigurationError(f"`dtype_mapping` names `{name}`, which is no dense feature", hint)
    every = dtype_mapping.get(EVERY)
    features = (
        replace(f, stored_dtype=dtype_mapping.get(f.name, (every if f.name in names else None) or f.stored_dtype))
        for f in schema.features
    )
    return replace(schema, features=tuple(features))


def collect(
    parts: Mapping[str, Any],
    schema: FeatureSchema,
    *,
    on_overflow: OnOverflow,
    on_nonfinite: OnNonfinite,
    limit: int,
    folder: Path,
    numbered_from: Mapping[str, int] | None = None,
) -> tuple[dict[str, CollectedRows], dict[str, Float16Tally]]:
    """Check all rows, and learn what float16 does to the dense columns.

    Args:
        parts: Tables or streams by split.
        schema: As asked for; a stored type may be `"auto"`.
        on_overflow: `"raise"`: refuse what a float16 column cannot hold.
        on_nonfinite: `"keep"`: store NaN and infinity.
        limit: Bytes that a split may take in memory.
        folder: Of the store.
        numbered_from: By split, the row of the source that rows which do not carry theirs begin at; left out, 0.

    Raises:
        ConfigurationError: A word that is none, or rows that are no table and no stream.
        DataError: A value cannot be stored.
    """
    for name, value, words in (("overflow", on_overflow, OnOverflow), ("nonfinite", on_nonfinite, OnNonfinite)):
        if value not in get_args(words):
            *others, last = (repr(word) for word in get_args(words))
            told = f"{', '.join(others)} or {last}"
            raise ConfigurationError(f"`on_{name}` must be {told}, got {value!r}", "leave it out")
    tallies = {feature.name: Float16Tally() for feature in schema.dense}
    found = {}
    for split, source in parts.items():
        rows = CollectedRows(
            schema, split, tallies=tallies, on_overflow=on_overflow, limit=limit // max(len(parts), 1), folder=folder
        )
        begin = (numbered_from or {}).get(split, 0)
        for block in row_blocks(source, split, keep_nonfinite=on_nonfinite == "keep", numbered_from=begin):
            rows.add(block)
        found[split] = rows
    return found, tallies


def decided(
    schema: FeatureSchema, tallies: Mapping[str, Float16Tally], on_overflow: OnOverflow
) -> tuple[FeatureSchema, dict[str, int], dict[str, str]]:
    """What each dense column is stored as.

    Returns:
        The schema as stored, values to be clipped by feature, and why, by feature that was decided here.
    """
    features, clipped, notes = [], {}, {}
    for feature in schema.features:
        tally = tallies.get(feature.name)
        stored = feature.stored_dtype
        if tally is not None and stored == "auto":
            stored = "float16" if tally.loss.survives else "float32"
            notes[feature.name] = f"{stored}: in float16 {tally.loss}"
        elif tally is not None and stored == "float16" and tally.overflowed:
            if on_overflow == "clip":
                clipped[feature.name] = tally.overflowed
            else:
                stored = "float32"
                notes[feature.name] = f"float32: {tally.overflowed:,} numbers are beyond float16"
        features.append(replace(feature, stored_dtype=stored))
    return replace(schema, features=tuple(features)), clipped, notes
