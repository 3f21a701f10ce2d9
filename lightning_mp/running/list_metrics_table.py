"""The table of a run that ranks all items: the model's lists beside those of rules that cost nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from lightning_mp.artifacts import replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRow:
    """One line: means over users at `k` of the table.

    Args:
        name: What ranked: the model or a baseline.
        ndcg: Normalised discounted cumulative gain.
        recall: Share of a user's relevant items among the first `k`.
        hit_rate: Share of users with one among the first `k`.
        mrr: One over the place of the first relevant item in the whole list.
    """

    name: str
    ndcg: float
    recall: float
    hit_rate: float
    mrr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSlice:
    """The model and its strongest rival on some users, or on the relevant items of a kind.

    Args:
        name: Of the slice.
        users: Users in it.
        ndcg: Of the model; `None` where there is no model.
        rival_ndcg: Of the baseline with the highest NDCG.
    """

    name: str
    users: int
    ndcg: float | None
    rival_ndcg: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListMetricsTable:
    """Rankings of all items for the users of the test part.

    `rich.print` shows it as a table; `to_dict` and `write` give it to programs.

    Args:
        k: Items of each list that count.
        users: Users that were ranked for.
        items: Items that were ranked.
        rows: The model first, then the baselines.
        slices: Parts of the users and of the items.
        rival: The baseline with the highest NDCG.
        notes: What a reader should know, a sentence each.
    """

    k: int
    users: int
    items: int
    rows: tuple[ListRow, ...]
    slices: tuple[ListSlice, ...]
    rival: str
    notes: tuple[str, ...]

    def row(self, name: str) -> ListRow:
        """The row of that name.

        Raises:
            KeyError: There is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, under the names of the arguments."""
        record = asdict(self)
        return {**record, **{name: list(record[name]) for name in ("rows", "slices", "notes")}}

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
        """The table, the slices, then the notes, a line each."""
        title = f"all {self.items:,} items ranked for {self.users:,} users of the test part"
        table = Table("ranked by", title=title, title_justify="left")
        for heading in (f"NDCG@{self.k}", f"recall@{self.k}", f"hit rate@{self.k}", "MRR"):
            table.add_column(heading, justify="right")
        for row in self.rows:
            table.add_row(row.name, *(f"{value:.4f}" for value in (row.ndcg, row.recall, row.hit_rate, row.mrr)))
        yield table
        if self.slices:
            table = Table(f"NDCG@{self.k} on", title_justify="left")
            for heading in ("model", self.rival, "users"):
                table.add_column(heading, justify="right")
            for part in self.slices:
                mine = "-" if part.ndcg is None else f"{part.ndcg:.4f}"
                table.add_row(part.name, mine, f"{part.rival_ndcg:.4f}", f"{part.users:,}")
            yield table
        yield from map(Text, self.notes)  # as it is: `[search]` is no markup
