"""From an event log to a feature store, once: what is there already is not made again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from lightning_mp.artifacts import digest
from lightning_mp.data.columns import Columns
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.events import EventLog, Progress, read_events
from lightning_mp.data.feature_attributes import feature_attributes
from lightning_mp.data.feature_columns import FeatureColumn, feature_columns
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.input_file import file_kind
from lightning_mp.data.iso_time import to_iso
from lightning_mp.data.label import Label
from lightning_mp.data.labelled_rows import LabelledRows, labelled_rows
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.time_split import PARTS, TimeSplit
from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import Feature, FeatureSchema

FORMAT: Final = 1
"""Of what `prepare` makes from the same input and settings; raised whenever that changes."""


def prepare(
    path: str | Path,
    store: str | Path | FeatureStore,
    *,
    columns: Columns,
    label: Label,
    features: Sequence[FeatureSpec],
    event_map: Mapping[str, str | None] | None = None,
    split: TimeSplit | None = None,
    csv: CsvDialect | None = None,
    max_bad_share: float = 0.001,
    on_overflow: Literal["raise", "float32", "clip"] = "raise",
    shuffle_seed: int = 0,
    progress: Progress | None = None,
) -> FeatureStore:
    """Make a feature store from an event log.

    Vocabularies, transforms and means are fitted on the training part alone. A store that was made from the same bytes
    with the same settings is left as it is; with others a new version is added, and the older ones stay. An error
    leaves the store as it was.

    Args:
        path: The log, a CSV or Parquet file.
        store: Folder of the store, or the store.
        columns: Where the log keeps what.
        label: What a row is labelled with.
        features: In the order of the model's inputs.
        event_map: Kind of each word of the log that is not a kind itself.
        split: Where the parts begin; the defaults of `TimeSplit` when left out.
        csv: How a CSV file is written.
        max_bad_share: Share in [0, 1] of rows that may be rejected.
        on_overflow: What `FeatureStore.write` does with a float16 feature that holds too large a number, which happens
            where later rows go beyond what the training part showed.
        shuffle_seed: Of the order of the rows in the store.
        progress: Called with one line of text now and then.

    Returns:
        The store; its manifest's `source` says what was read, rejected, fitted and why each column has its type.

    Raises:
        ConfigurationError: Settings that do not go together.
        DataError: The log cannot be used as it is.
        LeakageError: A feature reads the label, or a column that tells what happened to the row.
        ArtifactError: The store cannot be written.
    """
    file_kind(path)
    if not features:
        raise ConfigurationError("`features` names no feature", "declare at least the user's and the item's id")
    tell = progress or _silent
    opened = store if isinstance(store, FeatureStore) else FeatureStore(store)
    split, csv, event_map = split or TimeSplit(), csv or CsvDialect(), dict(event_map or {})
    settings = {
        "columns": asdict(columns),
        "label": asdict(label),
        "features": [asdict(spec) for spec in features],
        "event_map": event_map,
        "split": asdict(split),
        "csv": asdict(csv),
        "max_bad_share": max_bad_share,
        "on_overflow": on_overflow,
        "shuffle_seed": shuffle_seed,
        "dtype_mapping": opened.dtype_mapping,
    }
    attributes = feature_attributes(features, columns, label)
    key = _key(digest(path), settings)
    if opened.exists and opened.manifest.source.get("key") == key:
        tell(f"`{opened.path}` was made from this log with these settings: nothing to do")
        return opened
    log = read_events(
        path,
        columns=columns,
        event_map=event_map,
        attributes=attributes,
        csv=csv,
        max_bad_share=max_bad_share,
        progress=progress,
    )
    _tell_log(log, tell)
    users, items = (log.table[name].combine_chunks().dictionary_encode() for name in ("user", "item"))
    user, item = (np.asarray(keys.indices.to_numpy(), dtype=np.int64) for keys in (users, items))
    rows = labelled_rows(log, user * len(items.dictionary) + item, columns=columns, label=label, split=split)
    table = log.table.take(pa.array(rows.positions))
    made = feature_columns(features, table, rows.parts == "train", columns)
    for column in made:
        tell(f"feature `{column.feature.name}`: {column.note}")
    target = Feature(
        name=label.name, kind="numeric", role="label", source_dtype="float", stored_dtype="float32", missing="refuse"
    )
    schema = FeatureSchema(features=(*(column.feature for column in made), target))
    keys = {"@time": table["time"], "@row": table["row"], "@user": user[rows.positions], "@item": item[rows.positions]}
    summary = _summary(log, rows, table, made)
    _tell_parts(summary["parts"], target.name, tell)
    version = opened.write(
        _parts(made, rows, target.name, keys),
        schema=schema,
        vocabularies={c.feature.name: c.vocabulary for c in made if c.vocabulary is not None},
        users=users.dictionary,
        items=items.dictionary,
        source={
            "key": _key(log.digest, settings),
            "format": FORMAT,
            "path": str(path),
            "settings": settings,
            **summary,
        },
        on_overflow=on_overflow,
        shuffle_seed=shuffle_seed,
    )
    tell(f"wrote version {version} of `{opened.path}`: {len(rows.labels):,} rows")
    return opened


def _key(input_digest: str, settings: Mapping[str, Any]) -> str:
    record = json.dumps([FORMAT, input_digest, settings], sort_keys=True)
    return hashlib.sha256(record.encode()).hexdigest()


def _parts(
    made: Sequence[FeatureColumn], rows: LabelledRows, label: str, keys: Mapping[str, Any]
) -> dict[str, pa.Table]:
    columns = {column.feature.name: pa.array(column.values) for column in made}
    table = pa.table({**columns, label: pa.array(rows.labels), **keys})
    return {part: table.filter(pa.array(rows.parts == part)) for part in PARTS if (rows.parts == part).any()}


def _summary(log: EventLog, rows: LabelledRows, table: pa.Table, made: Sequence[FeatureColumn]) -> dict[str, Any]:
    time = table["time"].to_numpy()
    parts = {}
    for part in PARTS:
        inside = rows.parts == part
        if inside.any():
            span = {"from": to_iso(int(time[inside].min())), "to": to_iso(int(time[inside].max()))}
            parts[part] = {"rows": int(inside.sum()), "label_mean": float(rows.labels[inside].mean()), **span}
    return {
        "digest": log.digest,
        "rows": log.rows,
        "rejected": log.rejected,
        "rejects": log.rejects.slice(0, 100).to_pylist(),
        "counts": log.counts,
        "ignored": log.ignored,
        "time_formats": log.time_formats,
        "parts": parts,
        "notes": {column.feature.name: column.note for column in made},
    }


def _tell_log(log: EventLog, tell: Progress) -> None:
    counts = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    formats = ", ".join(f"{name} {count:,}" for name, count in log.time_formats.items())
    tell(f"{log.rows:,} rows, {log.rejected:,} rejected; events: {counts}; times: {formats}")
    for reject in log.rejects.slice(0, 3).to_pylist():
        tell(f"rejected line {reject['line']:,}, column `{reject['column']}`: {reject['value']!r} {reject['reason']}")


def _tell_parts(parts: Mapping[str, Mapping[str, Any]], label: str, tell: Progress) -> None:
    for name, part in parts.items():
        span = f"{part['from']} to {part['to']}"
        tell(f"{name}: {part['rows']:,} rows, {span}, mean of label `{label}` {part['label_mean']:.4f}")


def _silent(_: str) -> None:
    return
