"""`lightning-mp prepare --config RECIPE`: read an event log and write its feature store."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightning_mp.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_mp.data.store.feature_store import FeatureStore
    from lightning_mp.schema import Feature

_SHOWN_REJECTS = 5
_SHOW_SQL = "--show-sql"
_FEATURE_LINE = re.compile(r"feature `[^`]+`: .*( entries, |, stored as )")


def main(argv: Sequence[str]) -> int:
    """Do the data part of a recipe, as `fit` would do it first, and say what came of it.

    Args:
        argv: Arguments after `prepare`: `--config RECIPE`, options such as `--data.path FILE`, and `--show-sql`, which
            prints the SQL of each feature that is made of earlier events.

    Returns:
        0.

    Raises:
        LightningMPError: The recipe or its log is refused, or the store cannot be written.
    """
    if not argv:
        raise ConfigurationError("`prepare` needs a recipe", "pass one: `lightning-mp prepare --config quickstart`")

    from lightning_mp.data.store.feature_store import FeatureStore
    from lightning_mp.running.recipe_data import recipe_datamodule

    switches = {_SHOW_SQL: "Print the SQL of each feature that is made of earlier events."}
    data = recipe_datamodule("prepare", argv, switches=switches)
    with _features_told_once():
        data.prepare_data()
    store = getattr(data, "store", None)
    if isinstance(store, FeatureStore):
        print("\n".join(summary(store)))
        if _SHOW_SQL in argv:
            for name, history in store.manifest.source.get("histories", {}).items():
                print(f"\n-- {name}\n{history['sql']};")
    else:
        print(f"`{type(data).__name__}` has prepared its data")
    return 0


def summary(store: FeatureStore) -> list[str]:
    """Lines on the latest version of a store: rows, rejects, splits, and each column with its stored type."""
    from lightning_mp.data.prepared_summary import hidden_lines

    manifest = store.manifest
    source = manifest.source
    lines = [f"store `{store.path}`, version {manifest.version}"]
    if "rows" in source:
        lines.append(f"log: {source['rows']:,} rows, {source['rejected']:,} rejected")
    lines += [
        f"  line {reject['line']:,}, column `{reject['column']}`: {reject['value']!r} {reject['reason']}"
        for reject in source.get("rejects", [])[:_SHOWN_REJECTS]
    ]
    if source.get("rejected", 0) > _SHOWN_REJECTS:
        lines.append(f"  and {source['rejected'] - _SHOWN_REJECTS:,} more")
    parts = source.get("parts", {})
    lines.append("")
    for split in manifest.splits:
        told = parts.get(split)
        words = f"  {told['from']} to {told['to']}  label mean {told['label_mean']:.4f}" if told else ""
        lines.append(f"{split:<10}  {manifest.rows(split):>12,} rows{words}")
    lines += list(hidden_lines(source))
    lines.append("")
    width = max((len(feature.name) for feature in manifest.schema.features), default=0)
    notes = source.get("notes", {})
    for feature in manifest.schema.features:
        size = f"{feature.vocabulary_size:,} entries" if feature.vocabulary_size else feature.transform.kind
        note = "the label" if feature.role == "label" else notes.get(feature.name, size)
        lines.append(f"{feature.name:<{width}}  {feature.kind:<11}  {_stored(feature):<8}  {note}")
    return lines


@contextmanager
def _features_told_once() -> Iterator[None]:
    """Leave the line on each feature to the summary, which has it too."""
    from lightning_utilities.core import rank_zero

    log = rank_zero.log  # its name is that of whichever of the two Lightning packages was imported last

    def keep(record: logging.LogRecord) -> bool:
        return _FEATURE_LINE.match(record.getMessage()) is None

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


def _stored(feature: Feature) -> str:
    return feature.stored_dtype if feature.width == 1 else f"{feature.stored_dtype}[{feature.width}]"
