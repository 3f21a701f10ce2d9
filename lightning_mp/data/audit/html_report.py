"""An audit's report as one HTML page: overview, findings, and every column with its picture."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from lightning_mp.data.audit.finding import SEVERITIES
from lightning_mp.html_page.histogram import histogram
from lightning_mp.html_page.page import page, table
from lightning_mp.html_page.visible_text import visible

if TYPE_CHECKING:
    from lightning_mp.data.audit.column_report import ColumnReport
    from lightning_mp.data.audit.report import Report
    from lightning_mp.data.audit.statistics import ColumnStatistics

PICTURES: Final = 200
"""Columns that get a picture, the worst first: more would make a page that browsers choke on."""
_FINDINGS: Final = 1000
_AXIS: Final = (-32, 24)
"""Powers of two that every picture shows at least: all of float16's, so that pictures can be compared."""
_CARD: Final = Markup(
    '<div style="display:flex;flex-wrap:wrap;gap:0 1.5rem;border-top:1px solid var(--grid);padding:.5rem 0">'
    '<div style="flex:1 1 17rem"><h3 style="margin:.5rem 0">{}</h3>{}</div>'
    '<div style="flex:1 1 20rem;min-width:0;max-width:30rem">{}</div></div>'
)
_FINDING: Final = Markup(
    '<div style="display:flex;flex-wrap:wrap;gap:0 1.5rem;border-top:1px solid var(--grid);padding:.4rem 0">'
    '<div style="flex:1 1 15rem"><strong>{}</strong> {}<br>{}</div>'
    '<div style="flex:2 1 24rem">{}<br>cure: {}</div></div>'
)
_FACT: Final = Markup('<p style="margin:.25rem 0">{}</p>')


def html_report(report: Report) -> str:
    """The page of a report; names are shown as text, whatever they hold.

    Args:
        report: Of an audit.
    """
    ordered = sorted(report.columns, key=_rank)
    sections: dict[str, str] = {"Overview": _overview(report), f"Findings ({len(report.findings)})": _findings(report)}
    drawn = [column for column in ordered if column.statistics.magnitudes][:PICTURES]
    note = Markup("<p>{}</p>").format(
        "Bars: how many numbers lie at each power of two, on a logarithmic scale. Bands: where float16 keeps all its "
        "digits, where it loses them (subnormal), and bfloat16's range. Left of the bands numbers become zero, "
        "right of them infinite."
    )
    sections["Columns"] = note + Markup("").join(_card(column, report.policy) for column in drawn)
    rest = [column for column in ordered if not column.statistics.magnitudes or column not in drawn]
    if rest:
        header = ["column", "type", "read as", "rows", "missing", "different", "score"]
        sections["Other columns"] = table(header, [_row(column) for column in rest[:_FINDINGS]])
    return page(f"Precision audit: {PurePath(report.source).name}", sections=sections)


def _rank(column: ColumnReport) -> tuple[float, ...]:
    grave = min((SEVERITIES.index(found.severity) for found in column.findings), default=len(SEVERITIES))
    return (grave, 100.0 if column.score is None else column.score, column.position)


def _overview(report: Report) -> Markup:
    counts = {severity: sum(f.severity == severity for f in report.findings) for severity in SEVERITIES}
    wanted = [column.advice.stored for column in report.columns if column.advice is not None]
    stored = ", ".join(f"{wanted.count(name)} {name}" for name in dict.fromkeys(sorted(wanted)))
    rows: list[list[object]] = [
        ["source", report.source],
        [
            "score",
            f"{_score(report.score)} of 100 for {report.policy}, {_score(report.advised_score)} after the advice",
        ],
        ["rows", f"{report.rows:,}"],
        ["columns", f"{len(report.columns):,}"],
        ["findings", ", ".join(f"{number:,} {name}{'' if number == 1 else 's'}" for name, number in counts.items())],
        ["advised types", stored or "none"],
        ["label", report.label or "none given"],
        ["time", report.time or "none given"],
    ]
    rows += [["note", note] for note in report.notes]
    return table(["what", "value"], rows)


def _findings(report: Report) -> Markup:
    if not report.findings:
        return Markup("<p>None.</p>")
    shown = [
        _FINDING.format(found.severity, f"{found.code} {found.name}", visible(_cut(found.column)),
                        visible(found.problem), visible(found.cure))
        for found in report.findings[:_FINDINGS]
    ]  # fmt: skip
    more = len(report.findings) - len(shown)
    tail = Markup("<p>{} more stand in the JSON.</p>").format(f"{more:,}") if more else Markup("")
    return Markup("").join(shown) + tail


def _card(column: ColumnReport, policy: str) -> Markup:
    s, advice = column.statistics, column.advice
    facts = [
        f"{column.type}, {column.audited_as}; score {_score(column.score)} for {policy}",
        f"{s.minimum:.6g} to {s.maximum:.6g}, mean {s.mean:.4g}, std {s.std:.4g}" if s.std is not None else "",
        f"{_percent(s.zero_share)} zeros, {_percent(s.missing / s.rows if s.rows else None)} missing, "
        f"{'' if s.distinct_exact else 'about '}{s.distinct:,} different",
        f"max/min {_short(s.ratio)}, std/mean {_short(s.spread)}, {s.float32_bits} fraction bits used",
        *(f"{name}: {_loss(s, name)}" for name in s.formats),
        "" if s.auc is None else f"AUC alone {s.auc:.3f}",
        "" if s.drift is None else f"stability index {s.drift:.3f}",
    ]
    if advice is not None:
        after = "" if advice.score is None else f", then {_score(advice.score)}"
        facts.append(f"advice: {advice.stored}, transform {advice.transform.kind}{after}: {advice.reason}")
    codes = dict.fromkeys(f"{found.code} {found.name}" for found in column.findings)
    facts.append(f"findings: {', '.join(codes)}" if codes else "")
    words = Markup("").join(_FACT.format(visible(fact)) for fact in facts if fact)
    return _CARD.format(visible(_cut(column.name)), words, _picture(column))


def _picture(column: ColumnReport) -> Markup:
    counts = column.statistics.magnitudes
    low, high = min(_AXIS[0], *counts), max(_AXIS[1], max(counts) + 1)
    edges = list(range(min(counts), max(counts) + 2))
    return histogram(
        [float(edge) for edge in edges],
        [math.log10(1 + counts.get(edge, 0)) for edge in edges[:-1]],  # the tails count, and a plain scale hides them
        title=_cut(column.name),
        x_label="power of two of the magnitude",
        y_label="log10 of the numbers",
        bands=[
            ("float16: all digits", -14.0, 16.0),
            ("float16: subnormal", -24.0, -14.0),
            ("bfloat16 and float32", max(float(low), -126.0), min(float(high), 128.0)),
        ],
        width=440,
        height=220,
    )


def _row(column: ColumnReport) -> list[object]:
    s = column.statistics
    return [_cut(column.name), column.type, column.audited_as, s.rows, s.missing, s.distinct, _score(column.score)]


def _loss(s: ColumnStatistics, name: str) -> str:
    loss = s.formats[name]
    parts = [
        f"{count:,} {word}"
        for count, word in ((loss.overflowed, "infinite"), (loss.flushed, "to zero"), (loss.subnormal, "subnormal"))
        if count
    ]
    parts.append(f"{_percent(loss.exact_share)} exact")
    if loss.error_p99 is not None:
        parts.append(f"rounding p50 {loss.error_p50:.1e}, p99 {loss.error_p99:.1e}")
    if loss.collided:
        parts.append(f"{loss.collided:,} integers collide")
    return ", ".join(parts)


def _score(score: float | None) -> str:
    return "none" if score is None else f"{score:.0f}"


def _percent(share: float | None) -> str:
    return "no" if share is None else f"{share:.1%}"


def _short(number: float | None) -> str:
    return "none" if number is None else f"{number:.3g}"


def _cut(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."
