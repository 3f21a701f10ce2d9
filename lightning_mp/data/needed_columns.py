"""Which columns the features and the label need, where each stands, and which ones a feature must not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightning_mp.data.column_types import ColumnType
from lightning_mp.data.columns import Columns, EventFlags
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.history import History
from lightning_mp.data.label import Label, ValueLabel
from lightning_mp.errors import ConfigurationError, LeakageError

Place = Literal["log", "items", "users"]
DERIVED = ("session", "dwell")
"""Columns that `sessions` makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededColumns:
    """Columns to read beside the mapped ones, with their types, by where they stand.

    Attributes:
        log: As `attributes` of `read_events`.
        items: Of the table of items.
        users: Of the table of users.
    """

    log: dict[str, ColumnType] = field(default_factory=dict)
    items: dict[str, ColumnType] = field(default_factory=dict)
    users: dict[str, ColumnType] = field(default_factory=dict)


def needed_columns(
    specs: Sequence[FeatureSpec],
    columns: Columns,
    label: Label,
    *,
    headers: Mapping[Place, Sequence[str]],
    others: Sequence[str] = (),
    sessions: bool = False,
) -> NeededColumns:
    """Find the columns. A name is looked for in the log, then among the items', then among the users' columns.

    Args:
        specs: The features.
        columns: Where the log keeps what.
        label: What rows are labelled with.
        headers: Columns that each file has; a name that none has is left to the log's reader to refuse.
        others: Further columns of the log that are needed, of any type.
        sessions: Whether `session` and `dwell` are made.

    Raises:
        LeakageError: A feature reads the label's column, or one that tells what happened to the row.
        ConfigurationError: A feature reads a mapped column in a way that cannot work, or two features read one column
            in two types.
    """
    finder = _Finder(columns, headers, _told_later(columns, label), DERIVED if sessions else ())
    for spec in specs:
        finder.add(spec)
    if isinstance(label, ValueLabel) and label.value != columns.value:
        finder.found.log[label.value] = "double"
    for name in others:
        if not finder.is_there(name):
            finder.found.log.setdefault(name, "auto")
    return finder.found


def mapped_column(name: str, columns: Columns) -> str:
    """A column of the events' table: `user` for the file's column of users, and so on; any other name as it is."""
    roles = {columns.user: "user", columns.item: "item"}
    if columns.value is not None:
        roles[columns.value] = "value"
    return roles.get(name, name)


@dataclass(slots=True)
class _Finder:
    columns: Columns
    headers: Mapping[Place, Sequence[str]]
    told: Mapping[str, str]
    made: tuple[str, ...]
    found: NeededColumns = field(default_factory=NeededColumns)
    any_type: set[str] = field(default_factory=set)

    def is_there(self, name: str) -> bool:
        """Whether the events have it anyway."""
        mapped = (self.columns.user, self.columns.item, self.columns.time, self.columns.value)
        return name in (*mapped, *self.made)

    def add(self, spec: FeatureSpec) -> None:
        column = spec.source_column(self.columns)
        if column is not None:
            self._refuse_told(spec, column)
            if column in self.made:
                _refuse_session(spec, column)
            elif self.is_there(column):
                _require_fitting(spec, column, self.columns)
            else:
                self._need(column, "double" if spec.kind == "numeric" else spec.source)
        for name in spec.missing_by:
            self._beside(spec, name, None)
        if spec.known_at is not None:
            self._beside(spec, spec.known_at, "time")
        if spec.past is not None:
            self._history(spec, spec.past)

    def _beside(self, spec: FeatureSpec, name: str, kind: ColumnType | None) -> None:
        self._refuse_told(spec, name)
        if not self.is_there(name):
            self._need(name, kind)

    def _history(self, spec: FeatureSpec, history: History) -> None:
        for name in history.by:
            self._refuse_told(spec, name)
            if name in (self.columns.time, self.columns.value, "dwell"):
                problem = f"feature `{spec.name}`: `history.by` names `{name}`, in which no two events are alike"
                raise ConfigurationError(problem, "name keys and categories")
            if name not in ("user", "item") and not self.is_there(name):
                self._need(name, None)
        if history.column is not None and not self.is_there(history.column):
            self._need(history.column, None if history.measure == "distinct" else "double")

    def _need(self, column: str, kind: ColumnType | None) -> None:
        """Note a column; of type `None` it will do as it is."""
        order: tuple[Place, ...] = ("log", "items", "users")
        place = next((name for name in order if column in self.headers.get(name, ())), "log")
        types: dict[str, ColumnType] = getattr(self.found, place)
        if kind is None and column not in types:
            types[column] = "auto"
            self.any_type.add(column)
        elif kind is not None:
            before = types.get(column, kind)
            if before != kind and column not in self.any_type:
                problem = f"two features read `{column}`, as {before} and as {kind}"
                raise ConfigurationError(problem, "keep one of them")
            types[column] = kind
            self.any_type.discard(column)

    def _refuse_told(self, spec: FeatureSpec, column: str) -> None:
        if column in self.told:
            problem = f"feature `{spec.name}` reads `{column}` ({self.told[column]}), which is known only after its row"
            raise LeakageError(problem, "drop the feature, or make a `history` of it")


def _told_later(columns: Columns, label: Label) -> dict[str, str]:
    told = {label.value: "label.value"} if isinstance(label, ValueLabel) else {}
    if isinstance(columns.event, EventFlags):
        told |= {column: f"columns.event.flags.{kind}" for kind, column in columns.event.flags.items()}
    if isinstance(columns.event, str):
        told[columns.event] = "columns.event"
    return told


def _refuse_session(spec: FeatureSpec, column: str) -> None:
    if column == "dwell":
        problem = f"feature `{spec.name}` reads `dwell`, the time until the user's next event: known only after its row"
        raise LeakageError(problem, "use its `history`, with a `delay` as long as the gap between sessions")
    problem = f"feature `{spec.name}` reads `session`: sessions to come have other numbers"
    raise ConfigurationError(problem, "use it in `history.by`")


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
