"""ColumnReport: all that an audit says of one column."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lightning_mp.data.audit.advice import Advice, advise, looks_like_key
from lightning_mp.data.audit.any_findings import any_findings
from lightning_mp.data.audit.column_pass import ColumnPass
from lightning_mp.data.audit.finding import SEVERITIES, Finding
from lightning_mp.data.audit.number_findings import is_floating, number_findings
from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.score import Policy, column_score, score_factors
from lightning_mp.data.audit.statistics import ColumnStatistics, column_statistics
from lightning_mp.data.audit.text_findings import text_findings
from lightning_mp.data.audit.text_state import TextState
from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.html_page.visible_text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnReport:
    """All that an audit says of one column.

    Attributes:
        position: Of the column in the source, from 0.
        name: As it stands in the source.
        type: Arrow type in the source.
        audited_as: `number`, `key` (integers that name something), `text`, `time`, or `nothing`.
        statistics: Its numbers.
        score: Compatibility score from 0 to 100; `None` for what is no number.
        factors: What the score is the product of.
        counted: Whether the table's score counts it: it would be a float.
        advice: How to store it; `None` for what is no number.
        findings: The gravest first.
        sample: (K,) its values in the rows that columns are compared in.
    """

    position: int
    name: str
    type: str
    audited_as: str
    statistics: ColumnStatistics
    score: float | None = None
    factors: dict[str, float] = field(default_factory=dict)
    counted: bool = False
    advice: Advice | None = None
    findings: tuple[Finding, ...] = ()
    sample: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def column_report(position: int, finished: ColumnPass, *, thresholds: Thresholds, policy: Policy) -> ColumnReport:
    """Judge a column after its pass.

    Args:
        position: Of the column in the source.
        finished: The pass.
        thresholds: From where on to speak up.
        policy: What the column is to be cast to.
    """
    name, state = finished.name, finished.state
    kind = str(finished.kind)
    if state is None:
        problem = f"columns of type {kind} are not audited"
        cure = "unfold it into columns of numbers or texts"
        found = Finding(code="MP024", severity="note", column=name, problem=problem, cure=cure)
        return ColumnReport(position=position, name=name, type=kind, audited_as="nothing", findings=(found,),
                            statistics=ColumnStatistics(rows=0, missing=0))  # fmt: skip
    findings: list[Finding] = []
    if finished.unreadable:
        what = "numbers" if isinstance(state, NumberState) else "times"
        problem = f"{finished.unreadable:,} texts in a column of {what} are none: `{visible(finished.example[:40])}`"
        findings.append(Finding(code="MP023", severity="warning", column=name, problem=problem,
                                cure="clean what writes it; they count as missing"))  # fmt: skip
    if not isinstance(state, NumberState):
        statistics = state.statistics()
        rules = text_findings(name, state) if isinstance(state, TextState) else state.findings(name)
        findings += [*rules, *any_findings(name, statistics, thresholds)]
        return ColumnReport(position=position, name=name, type=kind, statistics=statistics, findings=_sorted(findings),
                            audited_as="text" if isinstance(state, TextState) else "time",
                            sample=finished.sample.values())  # fmt: skip
    statistics = column_statistics(state)
    advice = advise(name, state, statistics, thresholds, policy)
    findings += number_findings(name, statistics, advice, kind=kind, thresholds=thresholds, policy=policy)
    findings += any_findings(name, statistics, thresholds)
    key = looks_like_key(name, statistics)
    score = column_score(statistics, policy)
    return ColumnReport(
        position=position,
        name=name,
        type=kind,
        audited_as="key" if key else "number",
        statistics=statistics,
        score=score,
        factors=score_factors(statistics, policy) if score is not None else {},
        counted=score is not None and (is_floating(kind) or not key) and statistics.minimum != statistics.maximum,
        advice=advice,
        findings=_sorted(findings),
        sample=finished.sample.values(),
    )


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda found: (SEVERITIES.index(found.severity), found.code)))
