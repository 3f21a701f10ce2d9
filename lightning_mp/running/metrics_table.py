"""The table a run ends with: the model beside what it must beat and what it cannot pass."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from lightning_mp.artifacts import replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """One line of the table.

    Args:
        name: What was scored: the model, a baseline, or the best possible.
        auc: Area under the ROC curve; `None` where it is undefined.
        log_loss: Mean cross-entropy in nats; `None` where the scores are no probabilities, or it is undefined.
        rows: Test rows scored.
        undefined: Why a metric is undefined; `None` where none is.
    """

    name: str
    auc: float | None
    log_loss: float | None
    rows: int
    undefined: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTable:
    """Metrics of the model, the baselines and, on a synthetic log, of the true probabilities, on the same rows.

    `rich.print` shows it as a table; `to_dict` and `write` give it to programs.

    Args:
        rows: The model first, then the baselines, then the best possible.
        notes: What a reader should know, a sentence each: which baseline the model does not beat, and the like.
        unseen: How much of the test part training knew nothing of: `users`, `items` (distinct, in the test part
            and absent from the training part), `user_rows` and `item_rows` (test rows of such users and items).

    Example:
        >>> table = MetricsTable(rows=(MetricsRow(name="model", auc=0.75, log_loss=0.5, rows=10),), notes=(), unseen={})
        >>> table.row("model").auc
        0.75
    """

    rows: tuple[MetricsRow, ...]
    notes: tuple[str, ...]
    unseen: dict[str, int]

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
        """Plain values: `rows`, `notes`, `unseen`; what is undefined is `None`."""
        record = asdict(self)
        return {**record, "rows": list(record["rows"]), "notes": list(self.notes)}

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
        """The table, then the notes, a line each."""
        table = Table("scored by", title="metrics on the test part", title_justify="left")
        for heading in ("AUC", "log loss", "rows"):
            table.add_column(heading, justify="right")
        for row in self.rows:
            table.add_row(row.name, _shown(row.auc), _shown(row.log_loss), f"{row.rows:,}")
        yield table
        yield from self.notes


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
