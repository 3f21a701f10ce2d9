"""The table a run ends with: the model beside what it must beat and what it cannot pass."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from lightning_mp.artifacts import replacing

_FEW: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """One line of the table.

    Args:
        name: What was scored: the model, a baseline, or the best possible.
        auc: Area under the ROC curve; `None` where it is undefined.
        log_loss: Mean cross-entropy in nats; `None` where the scores are no probabilities, or it is undefined.
        rows: Test rows scored.
        user_auc: Mean over the users of the AUC inside each, weighted by rows; `None` where no user has both classes,
            and where the scores know how the user's own earlier rows ended.
        undefined: Why a metric is undefined; `None` where none is.
    """

    name: str
    auc: float | None
    log_loss: float | None
    rows: int
    user_auc: float | None = None
    undefined: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRow:
    """The model and its strongest rival on a part of the test rows.

    Args:
        name: Of the slice: `new users`, `tail items` and the like.
        rows: Test rows in it.
        auc: Of the model; `None` where it is undefined.
        rival_auc: Of the baseline with the highest AUC over all rows.
        positives: Rows whose label is above 0; `None` where they were not counted. An AUC over a handful is chance.
    """

    name: str
    rows: int
    auc: float | None
    rival_auc: float | None
    positives: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTable:
    """Metrics of the model, the baselines and, on a synthetic log, of the true probabilities, on the same rows.

    `rich.print` shows it as a table; `to_dict` and `write` give it to programs.

    Args:
        rows: The model first, then the baselines, then the best possible.
        notes: What a reader should know, a sentence each: which baseline the model does not beat, and the like.
        unseen: How much of the test part training knew nothing of: `users`, `items` (distinct, in the test part
            and absent from the training part), `user_rows` and `item_rows` (test rows of such users and items).
        slices: The model and its rival on the rows of new users, of head items and the like.
        rival: Name of the baseline with the highest AUC; `None` where there is none.

    Example:
        >>> table = MetricsTable(rows=(MetricsRow(name="model", auc=0.75, log_loss=0.5, rows=10),), notes=(), unseen={})
        >>> table.row("model").auc
        0.75
    """

    rows: tuple[MetricsRow, ...]
    notes: tuple[str, ...]
    unseen: dict[str, int]
    slices: tuple[SliceRow, ...] = ()
    rival: str | None = None

    def row(self, name: str) -> MetricsRow:
        """The row of that name.

        Raises:
            KeyError: There is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: `rows`, `notes`, `unseen`, `slices`, `rival`; what is undefined is `None`."""
        record = asdict(self)
        return {**record, **{name: list(record[name]) for name in ("rows", "notes", "slices")}}

    def write(self, path: str | Path) -> Path:
        """Write the table as JSON; the file is replaced whole or not at all.

        Returns:
            `path`.

        Raises:
            ArtifactError: The file cannot be written.
        """
        with replacing(path) as file:
            file.write(json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n")
        return Path(path)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, the slices, then the notes, a line each; no AUC of a slice with fewer than 10 positives."""
        table = Table("scored by", title="metrics on the test part", title_justify="left")
        for heading in ("AUC", "AUC in users", "log loss", "rows"):
            table.add_column(heading, justify="right")
        for row in self.rows:
            table.add_row(row.name, _shown(row.auc), _shown(row.user_auc), _shown(row.log_loss), f"{row.rows:,}")
        yield table
        if self.slices:
            table = Table("AUC on", title_justify="left")
            for heading in ("model", self.rival or "-", "positives", "rows"):
                table.add_column(heading, justify="right")
            for part in self.slices:
                few = part.positives is not None and part.positives < _FEW
                aucs = ("-", "-") if few else (_shown(part.auc), _shown(part.rival_auc))
                counted = "-" if part.positives is None else f"{part.positives:,}"
                table.add_row(part.name, *aucs, counted, f"{part.rows:,}")
            yield table
        yield from map(Text, self.notes)  # as it is: `[search]` is no markup


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
