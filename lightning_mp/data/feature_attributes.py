"""Which columns of a log the features and the label need, and which ones a feature must not read."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_mp.data.column_types import ColumnType
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.label import Label, ValueLabel
from lightning_mp.errors import ConfigurationError, LeakageError


def feature_attributes(specs: Sequence[FeatureSpec], columns: Columns, label: Label) -> dict[str, ColumnType]:
    """Columns to read beside the mapped ones, with their types.

    Args:
        specs: The features.
        columns: Where the log keeps what.
        label: What rows are labelled with.

    Returns:
        As `attributes` of `read_events`.

    Raises:
        LeakageError: A feature reads the label's column, or one that tells what happened to the row.
        ConfigurationError: A feature reads a mapped column in a way that cannot work, or two features read one column
            in two types.
    """
    told = _told_later(columns, label)
    attributes: dict[str, ColumnType] = {}
    for spec in specs:
        column = spec.source_column(columns)
        if column is None:
            continue
        if column in told:
            problem = f"feature `{spec.name}` reads `{column}` ({told[column]}), which is known only after its row"
            raise LeakageError(problem, "drop the feature")
        if column in (columns.user, columns.item, columns.time, columns.value):
            _require_fitting(spec, column, columns)
            continue
        kind: ColumnType = "double" if spec.kind == "numeric" else spec.source
        if attributes.setdefault(column, kind) != kind:
            problem = f"two features read `{column}`, as {attributes[column]} and as {kind}"
            raise ConfigurationError(problem, "keep one of them")
    if isinstance(label, ValueLabel) and label.value != columns.value:
        attributes[label.value] = "double"
    return attributes


def _told_later(columns: Columns, label: Label) -> dict[str, str]:
    told = {label.value: "label.value"} if isinstance(label, ValueLabel) else {}
    if isinstance(columns.event, EventFlags):
        told |= {column: f"columns.event.flags.{kind}" for kind, column in columns.event.flags.items()}
    if isinstance(columns.event, str):
        told[columns.event] = "columns.event"
    return told


def _require_fitting(spec: FeatureSpec, column: str, columns: Columns) -> None:
    if column == columns.time:
        problem = f"feature `{spec.name}` reads the time column `{column}`; a model that learns dates knows no new ones"
        raise ConfigurationError(problem, "use `of: hour` or `of: weekday`")
    is_key = column in (columns.user, columns.item)
    if is_key and spec.kind == "numeric":
        problem = f"feature `{spec.name}` reads the key column `{column}` as a number"
        raise ConfigurationError(problem, "use `kind: id`")
    if not is_key and spec.kind != "numeric":
        problem = f"feature `{spec.name}` reads `{column}` (columns.value) as {spec.kind}; it is a number"
        raise ConfigurationError(problem, "use `kind: numeric`")
