"""What is wrong with a column of any type: missing values, time, and what it knows of the label."""

from __future__ import annotations

from collections.abc import Iterator

from lightning_mp.data.audit.finding import Finding
from lightning_mp.data.audit.statistics import ColumnStatistics
from lightning_mp.data.audit.thresholds import Thresholds


def any_findings(name: str, s: ColumnStatistics, thresholds: Thresholds) -> Iterator[Finding]:
    """Hold what every column has against the thresholds.

    Args:
        name: Of the column.
        s: Its statistics.
        thresholds: From where on to speak up.
    """
    share = s.missing / s.rows if s.rows else 0.0
    if thresholds.missing_share < share < 1.0:
        yield Finding(
            code="MP014", severity="note", column=name, value=share, limit=thresholds.missing_share,
            problem=f"{s.missing:,} of {s.rows:,} rows ({share:.1%}) are missing",
            cure="choose its `missing` rule: the mode within a group often beats the mean",
        )  # fmt: skip
    if s.missing_first is not None and s.missing_last is not None:
        change = abs(s.missing_last - s.missing_first)
        if change > thresholds.missing_change:
            yield Finding(
                code="MP015", severity="warning", column=name, value=change, limit=thresholds.missing_change,
                problem=f"missing in {s.missing_first:.1%} of the first and {s.missing_last:.1%} of the last quarter",
                cure="find out what changed; a model trained on the first would not know the last",
            )  # fmt: skip
    if s.drift is not None and s.drift > thresholds.drift:
        yield Finding(
            code="MP019", severity="warning", column=name, value=s.drift, limit=thresholds.drift,
            problem=f"its distribution moved: stability index {s.drift:.2f} between first and last quarter",
            cure="check for a change of unit or source; retrain often, or leave it out",
        )  # fmt: skip
    if s.auc is not None:
        apart = max(s.auc, 1.0 - s.auc)
        if apart > 0.999:
            yield Finding(
                code="MP021", severity="error", column=name, value=s.auc, limit=0.999,
                problem=f"alone it tells the label: AUC {s.auc:.4f}",
                cure="leave it out: it is the label in disguise",
            )  # fmt: skip
        elif apart > thresholds.auc:
            yield Finding(
                code="MP020", severity="warning", column=name, value=s.auc, limit=thresholds.auc,
                problem=f"alone it nearly tells the label: AUC {s.auc:.4f}",
                cure="check that it was known before the label was",
            )  # fmt: skip
