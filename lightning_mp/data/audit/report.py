"""Report: what an audit says of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np

from lightning_mp import __version__
from lightning_mp.data.audit.column_report import ColumnReport
from lightning_mp.data.audit.finding import SEVERITIES, Finding
from lightning_mp.data.audit.row_sample import duplicates, near_duplicates
from lightning_mp.data.audit.score import Policy, table_score
from lightning_mp.data.audit.source import AuditSource
from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.errors import DataError

FORMAT: Final = 1
"""Of the JSON; a reader may rely on the names in it while this stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit says of a table.

    Attributes:
        source: As it was named.
        rows: Rows that were read.
        policy: What the score is for: `fp16` or `bf16`.
        score: Compatibility score of the table, from 0 to 100; `None` where no column would be a float.
        advised_score: The same with every column behind its advised transform, and no key among the floats.
        columns: One entry a column, in the source's order, the label left out.
        label: Column of the label.
        time: Column of times.
        notes: What happened on the way.
        seconds: Wall time that it took.
    """

    source: str
    rows: int
    policy: Policy
    score: float | None
    advised_score: float | None
    columns: tuple[ColumnReport, ...]
    label: str | None
    time: str | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of all columns: the gravest first, then by code."""
        found = [finding for column in self.columns for finding in column.findings]
        return tuple(sorted(found, key=lambda entry: (SEVERITIES.index(entry.severity), entry.code)))

    def column(self, name: str) -> ColumnReport:
        """The first column of that name.

        Raises:
            DataError: There is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        names = ", ".join(f"`{column.name}`" for column in self.columns[:20])
        raise DataError(f"the audit of `{self.source}` has no column `{name}`", f"its columns are {names}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `to_json` writes. Numbers that JSON does not have are `None`."""
        columns = [_plain({f.name: getattr(c, f.name) for f in fields(c) if f.name != "sample"}) for c in self.columns]
        return {
            "format": FORMAT,
            "lightning_mp": __version__,
            "source": self.source,
            "rows": self.rows,
            "policy": self.policy,
            "score": _plain(self.score),
            "advised_score": _plain(self.advised_score),
            "label": self.label,
            "time": self.time,
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "findings": [{**_plain(finding), "name": finding.name, "page": finding.page} for finding in self.findings],
            "columns": columns,
        }

    def to_json(self) -> str:
        """The report as JSON, strict, with every number that was measured."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_html(self) -> str:
        """The report as one page that stands alone and reads without JavaScript."""
        from lightning_mp.data.audit.html_report import html_report

        return html_report(self)


def assembled(
    source: AuditSource, columns: Sequence[ColumnReport], rows: int, *, label: str | None, time: str | None,
    policy: Policy, thresholds: Thresholds, seconds: float,
) -> Report:  # fmt: skip
    """Put columns together: compare them with each other, and score the table.

    Raises:
        DataError: There are no columns, or no rows.
    """
    if not source.fields:
        raise DataError(f"`{source.name}` has no columns", "check what was to write it")
    if not rows:
        noted = "".join(f"; {note}" for note in source.notes)
        problem = f"`{source.name}` has {len(source.fields)} columns and no row{noted}"
        raise DataError(problem, "check what was to write it")
    compared = _compared(columns, thresholds)
    scores = [column.score for column in compared if column.counted]
    advised = [
        column.advice.score if column.advice is not None else None
        for column in compared
        if column.counted and column.advice is not None and column.advice.stored not in ("int32", "drop")
    ]
    return Report(
        source=source.name, rows=rows, policy=policy, score=table_score(scores), advised_score=table_score(advised),
        columns=tuple(compared), label=label, time=time, notes=tuple(source.notes), seconds=seconds,
    )  # fmt: skip


def _compared(columns: Sequence[ColumnReport], thresholds: Thresholds) -> list[ColumnReport]:
    numbers = [c for c in columns if len(c.sample) and c.statistics.minimum != c.statistics.maximum]
    same = duplicates([(_signature(column), column.sample) for column in numbers])
    near = near_duplicates([column.sample for column in numbers], thresholds.near_duplicate)
    extra: dict[int, Finding] = {}
    for place, column in enumerate(numbers):
        if place in same:
            first = numbers[same[place]].name
            extra[column.position] = Finding(
                code="MP017", severity="warning", column=column.name, problem=f"holds what column `{first}` holds",
                cure="drop one of both",
            )  # fmt: skip
        elif place in near:
            first, correlation = numbers[near[place][0]].name, near[place][1]
            extra[column.position] = Finding(
                code="MP018", severity="note", column=column.name, value=correlation, limit=thresholds.near_duplicate,
                problem=f"follows column `{first}` up to a factor and a shift: correlation {correlation:.6f}",
                cure="drop one of both",
            )  # fmt: skip
    return [
        replace(column, findings=(*column.findings, extra[column.position])) if column.position in extra else column
        for column in columns
    ]


def _signature(column: ColumnReport) -> object:
    s = column.statistics
    with np.errstate(over="ignore"):  # a mean beyond float32 is infinite in it
        mean = None if s.mean is None else float(np.float32(s.mean))
    return (s.rows, s.missing, s.finite, s.zeros, s.negatives, s.distinct, s.minimum, s.maximum,
            mean, tuple(s.magnitudes.items()))  # fmt: skip


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
