"""From an event log to a feature store, once: what is there already is not made again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from lightning_mp.data.attribute_table import AttributeTable
from lightning_mp.data.audit.gate import AuditGate
from lightning_mp.data.audited_features import through_gate
from lightning_mp.data.byte_sizes import byte_size
from lightning_mp.data.columns import Columns
from lightning_mp.data.csv_dialect import CsvDialect
from lightning_mp.data.encoded_parts import encoded_parts
from lightning_mp.data.event_source import Paths, source_digest, source_files
from lightning_mp.data.events import Progress
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.guarded_features import LeakageGuard, guarded_features
from lightning_mp.data.label import Label
from lightning_mp.data.labelled_rows import labelled_rows
from lightning_mp.data.leave_last_out import LeaveLastOut
from lightning_mp.data.log_rows import LogRows, LogSettings, log_rows
from lightning_mp.data.negatives import Negatives
from lightning_mp.data.prepared_summary import prepared_summary, summary_lines
from lightning_mp.data.store.feature_store import FeatureStore
from lightning_mp.data.time_split import TimeSplit
from lightning_mp.errors import ConfigurationError, DataError
from lightning_mp.schema import Feature, FeatureSchema

FORMAT: Final = 3
"""Of what `prepare` makes from the same input and settings; raised whenever that changes."""


def prepare(
    path: Paths,
    store: str | Path | FeatureStore,
    *,
    columns: Columns,
    label: Label,
    features: Sequence[FeatureSpec],
    event_map: Mapping[str, str | None] | None = None,
    split: TimeSplit | LeaveLastOut | None = None,
    csv: CsvDialect | None = None,
    items: AttributeTable | None = None,
    users: AttributeTable | None = None,
    sessions: str | None = None,
    negatives: Negatives | None = None,
    leakage: LeakageGuard | None = None,
    audit: AuditGate | None = None,
    max_bad_share: float = 0.001,
    on_overflow: Literal["raise", "float32", "clip"] = "raise",
    shuffle_seed: int = 0,
    memory_limit: str | None = None,
    progress: Progress | None = None,
) -> FeatureStore:
    """Make a feature store from an event log.

    Vocabularies, transforms and means are fitted on the training part alone. A store that was made from the same bytes
    with the same settings is left as it is; with others a new version is added, and the older ones stay. An error
    leaves the store as it was.

    Args:
        path: The log: a CSV, Parquet or JSON lines file, a list of files, or a pattern such as `logs/*.csv`.
        store: Folder of the store, or the store.
        columns: Where the log keeps what.
        label: What a row is labelled with.
        features: In the order of the model's inputs.
        event_map: Kind of each word of the log that is not a kind itself.
        split: Where the parts begin; the defaults of `TimeSplit` when left out.
        csv: How a CSV file is written.
        items: Table of the items' attributes, joined by their key.
        users: Table of the users' attributes.
        sessions: Pause that ends a user's session, such as `30min`; makes the columns `session` and `dwell` (seconds
            until the user's next event), for histories.
        negatives: Draws rows for a log that holds what was taken and not what was shown.
        leakage: How closely features are looked at; the defaults of `LeakageGuard` when left out.
        audit: What the features must be worth; no gate when left out. Its verdict stands in the manifest's `source`.
        max_bad_share: Share in [0, 1] of rows that may be rejected.
        on_overflow: What `FeatureStore.write` does with a float16 feature that holds too large a number, which happens
            where later rows go beyond what the training part showed.
        shuffle_seed: Of the order of the rows in the store.
        memory_limit: What sorting events for histories may take, and the store's writer while it writes, such as
            `400MB`; beyond it the keys take their turns, and the writer goes to disk. It changes no feature, only in
            how many shards the rows lie. The rest goes through the log a piece at a time, with its columns in nameless
            files in the temporary folder (`TMPDIR`).
        progress: Called with one line of text now and then.

    Returns:
        The store; its manifest's `source` says what was read, rejected, fitted and why each column has its type.

    Raises:
        ConfigurationError: Settings that do not go together.
        DataError: The log cannot be used as it is, or changes while it is read, or the audit gate refuses the features.
        LeakageError: A feature knows what its row cannot know.
        ArtifactError: The store cannot be written.
    """
    files = source_files(path)
    if not features:
        raise ConfigurationError("`features` names no feature", "declare at least the user's and the item's id")
    tell = progress or _silent
    opened = store if isinstance(store, FeatureStore) else FeatureStore(store)
    split, guard = split or TimeSplit(), leakage or LeakageGuard()
    limit = None if memory_limit is None else byte_size(memory_limit, name="memory_limit")
    reading = LogSettings(
        columns=columns,
        event_map=dict(event_map or {}),
        csv=csv or CsvDialect(),
        items=items,
        users=users,
        sessions=sessions,
        negatives=negatives,
        max_bad_share=max_bad_share,
    )
    settings = {
        **asdict(reading),
        "label": asdict(label),
        "features": [asdict(spec) for spec in features],
        "split": asdict(split),
        "leakage": asdict(guard),
        "audit": None if audit is None else asdict(audit),
        "on_overflow": on_overflow,
        "shuffle_seed": shuffle_seed,
        "dtype_mapping": opened.dtype_mapping,
    }
    digest = source_digest(files)
    beside = [source_digest(source_files(table.path)) for table in (items, users) if table is not None]
    key = _key([digest, *beside], settings)
    if opened.exists and opened.manifest.source.get("key") == key:
        tell(f"`{opened.path}` was made from this log with these settings: nothing to do")
        return opened
    rows = log_rows(path, reading, features, label, tell)
    if rows.log.digest != digest:  # the store would be taken to hold rows that it does not
        problem = f"`{files[0]}`{' or a file after it' if files[1:] else ''} was written to while it was read"
        raise DataError(problem, "wait until it is complete, or prepare a copy")
    _tell_log(rows, tell)
    labelled = labelled_rows(
        rows.log, rows.pair, user=rows.user, time=rows.time, columns=columns, label=label, split=split
    )
    make = partial(
        guarded_features, rows=rows, labelled=labelled, columns=columns, label=label, guard=guard, memory_limit=limit,
        progress=tell,
    )  # fmt: skip
    made, histories = make(features)
    verdict = None
    if audit is not None:
        (made, histories), verdict = through_gate(features, (made, histories), make, labelled.training, audit)
        score = "none" if verdict["score"] is None else f"{verdict['score']:.0f} of 100"
        tell(f"audit: score {score} for {audit.policy}")
    for column in made:
        tell(f"feature `{column.feature.name}`: {column.note}")
    targets = tuple(
        Feature(name=name, kind="numeric", role="label", source_dtype="float", stored_dtype="float32", missing="refuse")
        for name in labelled.columns
    )
    summary = prepared_summary(rows, labelled, made, histories)
    for line in summary_lines(summary):
        tell(line)
    version = opened.write(
        encoded_parts(made, rows, labelled),
        schema=FeatureSchema(features=(*(column.feature for column in made), *targets)),
        vocabularies={c.feature.name: c.vocabulary for c in made if c.vocabulary is not None},
        users=rows.users,
        items=rows.items,
        source={
            "key": key,
            "format": FORMAT,
            "path": str(path) if isinstance(path, str | Path) else [str(file) for file in path],
            "settings": settings,
            **summary,
            "audit": verdict,
        },
        on_overflow=on_overflow,
        shuffle_seed=shuffle_seed,
        memory_limit=limit,
    )
    tell(f"wrote version {version} of `{opened.path}`: {len(labelled.labels):,} rows")
    return opened


def _key(digests: Sequence[str], settings: Mapping[str, Any]) -> str:
    record = json.dumps([FORMAT, digests, settings], sort_keys=True)
    return hashlib.sha256(record.encode()).hexdigest()


def _tell_log(rows: LogRows, tell: Progress) -> None:
    log = rows.log
    counts = ", ".join(f"{kind} {count:,}" for kind, count in log.counts.items())
    formats = ", ".join(f"{name} {count:,}" for name, count in log.time_formats.items())
    tell(f"{log.rows:,} rows, {log.rejected:,} rejected; events: {counts}; times: {formats}")
    for reject in log.rejects.slice(0, 3).to_pylist():
        tell(f"rejected line {reject['line']:,}, column `{reject['column']}`: {reject['value']!r} {reject['reason']}")
    for note in rows.notes.values():
        tell(note)


def _silent(_: str) -> None:
    return
