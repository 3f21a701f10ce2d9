"""FeatureSpec: a feature as a recipe declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightning_mp.data.columns import Columns
from lightning_mp.data.history import LABEL, History, HistorySettings
from lightning_mp.errors import ConfigurationError
from lightning_mp.schema import Missing, TransformKind

Calendar = Literal["hour", "weekday"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """A feature as a recipe declares it; what is fitted comes from the training part alone.

    Args:
        name: Its name in the schema and in requests.
        kind: `id` (the user's or the item's key, by `role`), `categorical`, `numeric`, `multi_categorical` (a list of
            categories, written as text with a `separator`), or `sequence`: the items of the user's events before the
            row, by the rows of the item's `id`; its `history` says of which events, such as `{of: order, by: [user]}`.
        role: What it describes; `weight` makes a numeric column the weight of each row in the loss.
        column: Column of the log, else of the items, else of the users; the feature's name when left out. An `id` takes
            the mapped user or item column.
        of: Takes the value from the row's own time: `hour` (0 to 23) or `weekday` (0 is Monday), for `categorical`.
        length: Entries that a list keeps at most: of a `sequence` the latest (50 when left out), of a
            `multi_categorical` the first (as many as the longest training list has).
        separator: What stands between the entries of a `multi_categorical`, such as `|`.
        history: Makes the value of the events before the row (`lightning_mp.data.history`), for `numeric`:
            `{of: click, per: impression, by: [user, category], window: 7d, as: rate, prior: 20}`.
        known_at: Column with the time at which the value came to be; a row whose value is not older is refused.
        transform: Of a `numeric` one (`lightning_mp.data.transforms`); `zscore` when left out. `auto` takes the
            audit's advice on the training part, and treats as missing what the feature's name rules out (an age
            below 0).
        valid_from: Smallest number that can be; what is below counts as missing, in training and in requests.
        valid_to: Largest number that can be.
        missing: What stands in for a missing value. Ids and categories: `unknown` (row 0; the default), `mode` (the
            most frequent value of the training part; of equally frequent ones the smallest), or `refuse`. Numbers:
            `mean` (the default) or `median` of the training part, `constant`, or `refuse`.
        missing_by: With `mode`: columns whose group gives the mode, from the narrowest on, such as
            `[category_id, category_code]`; where a group has none, the next one's, at last that of all rows. In a
            column of paths (`furniture.bedroom.bed`) each shorter path is a group too.
        missing_value: The number for `missing: constant`, before the transform.
        indicator: Adds a feature `<name>_missing`: 1 where the value is missing, else 0.
        dtype: How a `numeric` one is stored. `auto`: float16 where the transformed training column survives it.
        min_count: Training rows a category must have to get a row of its own.
        max_size: Rows of the embedding table at most.
        source: Type of a `categorical` one in the log; `auto` is text in a CSV and the file's own type in Parquet.

    Raises:
        ConfigurationError: Settings that do not go together.
    """

    name: str
    kind: Literal["id", "categorical", "numeric", "multi_categorical", "sequence"]
    role: Literal["user", "item", "context", "weight"] = "context"
    column: str | None = None
    of: Calendar | None = None
    history: HistorySettings | None = None
    known_at: str | None = None
    transform: TransformKind | Literal["auto"] | None = None
    valid_from: float | None = None
    valid_to: float | None = None
    missing: Missing | None = None
    missing_by: tuple[str, ...] = ()
    missing_value: float | None = None
    indicator: bool = False
    dtype: Literal["auto", "float16", "float32"] = "auto"
    min_count: int = 1
    max_size: int | None = None
    source: Literal["auto", "string", "int64"] = "auto"
    length: int | None = None
    separator: str | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigurationError(
                f"a feature of kind `{self.kind}` in `features` has the empty name {self.name!r}",
                "give it a `name`: requests use it; the column of the log goes into `column`",
            )
        numeric, sequence = self.kind == "numeric", self.kind == "sequence"
        several = self.kind == "multi_categorical"
        allowed = ("mean", "median", "constant", "refuse") if numeric else ("unknown", "mode", "refuse")
        faults = {
            "an `id` needs role `user` or `item`": self.kind == "id" and self.role not in ("user", "item"),
            "`role: weight` needs kind `numeric`": self.role == "weight" and not numeric,
            "`of` needs kind `categorical` and no `column`": self.of is not None
            and (self.kind != "categorical" or self.column is not None),
            "`history` needs kind `numeric` or `sequence`, and no `column`, `of` or `known_at`": bool(self.history)
            and (not (numeric or sequence) or any((self.column, self.of, self.known_at))),
            "`missing_by` needs `missing: mode`": bool(self.missing_by) and self.missing != "mode",
            "`indicator` is for a value that may be missing": self.indicator
            and (self.missing == "refuse" or self.of is not None or self.role == "weight" or self.kind == "id"),
            "`transform` is for kind `numeric`": self.transform is not None and not numeric,
            "`valid_from` and `valid_to` are for kind `numeric`": not numeric
            and (self.valid_from is not None or self.valid_to is not None),
            "`valid_from` is above `valid_to`": self.valid_from is not None
            and self.valid_to is not None
            and self.valid_from > self.valid_to,
            "`dtype` is for kind `numeric`; ids and categories are int32": self.dtype != "auto" and not numeric,
            f"`missing` must be one of {', '.join(allowed)}, got {self.missing!r}": self.missing is not None
            and self.missing not in allowed,
            "`missing: constant` needs `missing_value`": self.missing == "constant" and self.missing_value is None,
            "`missing_value` needs `missing: constant`": self.missing != "constant" and self.missing_value is not None,
            "kind `sequence` needs `history`, role `user`, and no other setting but `length`": sequence
            and (self.history is None or self.role != "user" or self.missing is not None),
            "`length` is for kinds `sequence` and `multi_categorical`, and at least 1": self.length is not None
            and (not (sequence or several) or self.length < 1),
            "kind `multi_categorical` needs a `separator`, and takes no `of`, `missing` or `indicator`": several
            and (not self.separator or any((self.of, self.missing, self.indicator))),
            "`separator` is for kind `multi_categorical`": self.separator is not None and not several,
            "`min_count` must be at least 1": self.min_count < 1,
            "`max_size` must be at least 2": self.max_size is not None and self.max_size < 2,
        }
        for fault, found in faults.items():
            if found:
                raise ConfigurationError(f"feature `{self.name}`: {fault}", "change its entry in `features`")
        past = self.past
        if sequence and past is not None and (past.by != ("user",) or past.measure != "count" or past.of == LABEL):
            problem = f"feature `{self.name}`: a sequence is of a kind of event, by the user alone"
            raise ConfigurationError(problem, "write its history as {of: order, by: [user]}")

    @property
    def missing_rule(self) -> Missing:
        """The rule for missing values, the default filled in."""
        if self.role == "weight":
            return self.missing or "refuse"
        return self.missing or ("mean" if self.kind == "numeric" else "unknown")

    @property
    def past(self) -> History | None:
        """The history that the feature is made of, if it is."""
        return None if self.history is None else History.from_settings(self.name, self.history)

    def source_column(self, columns: Columns) -> str | None:
        """The file's column that the feature is read from; `None` for one made from the time."""
        if self.of is not None or self.history is not None:
            return None
        if self.kind == "id" and self.column is None:
            return columns.user if self.role == "user" else columns.item
        return self.column or self.name

    def table_column(self, columns: Columns) -> str | None:
        """The column of an `EventLog`'s table: that of a mapped role where the file's column is mapped."""
        if self.history is not None:
            return history_column(self.name)
        source = self.source_column(columns)
        mapped = {columns.user: "user", columns.item: "item"}
        if columns.value is not None:
            mapped[columns.value] = "value"
        if self.kind == "id":
            mapped |= {columns.user: "user"} if self.role == "user" else {columns.item: "item"}
        return None if source is None else mapped.get(source, source)


def history_column(name: str) -> str:
    """Column of the table that holds the history of the feature called `name`."""
    return f"history of {name}"
