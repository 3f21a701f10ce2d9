"""What is wrong with a column of numbers, by rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lightning_mp.data.audit.advice import Advice, looks_like_key
from lightning_mp.data.audit.column_names import words_of
from lightning_mp.data.audit.finding import Finding, Severity
from lightning_mp.data.audit.score import FORMAT_OF, Policy, scale_ratio
from lightning_mp.data.audit.statistics import ColumnStatistics
from lightning_mp.data.audit.thresholds import Thresholds

_SENTINELS: Final = frozenset(
    sign * value for value in (999, 9999, 99999, 999999, 9999999, 99999999, 2147483647) for sign in (1, -1)
) | {-1, -9, -99}
"""Numbers that stand for "not known" in many systems, at an end of a column's range."""
_OLDEST: Final = 120


def number_findings(
    name: str | None,
    statistics: ColumnStatistics,
    advice: Advice,
    *,
    kind: str,
    thresholds: Thresholds,
    policy: Policy,
) -> list[Finding]:
    """Hold a column's statistics against the thresholds.

    Args:
        name: Of the column; `None` for a quantity of any name, already transformed.
        statistics: Of the column.
        advice: For the column: the cures name it.
        kind: Arrow type of the column.
        thresholds: From where on to speak up.
        policy: What the column is to be cast to; an overflow or a loss there is an error, elsewhere a note.
    """
    known, name = name is not None, name or ""
    if not statistics.finite:
        if statistics.infinities:
            problem = f"holds {statistics.infinities:,} infinite and no finite number"
            return [_finding("MP016", "error", name, problem, "drop the column, or repair what writes it")]
        return [_finding("MP013", "warning", name, f"all {statistics.rows:,} rows are missing", "drop the column")]
    found = [*_values(name, statistics, thresholds)]
    if statistics.minimum == statistics.maximum:
        problem = f"all {statistics.finite:,} numbers are {statistics.minimum:g}"
        return [*found, _finding("MP012", "warning", name, problem, "drop the column: it says nothing")]
    if known and looks_like_key(name, statistics):
        return [*found, *_key(name, kind, statistics, advice, policy)]
    found += _casts(name, statistics, advice, thresholds, policy)
    found += _shape(name, statistics, advice, thresholds)
    return found


def is_floating(kind: str) -> bool:
    """Whether an Arrow type holds floats, or numbers that become such.

    Args:
        kind: Its name.
    """
    return any(word in kind for word in ("float", "double", "half", "decimal"))


def _key(name: str, kind: str, s: ColumnStatistics, advice: Advice, policy: Policy) -> Iterator[Finding]:
    for number_format, loss in s.formats.items():
        chosen = number_format == FORMAT_OF[policy]
        severity: Severity = "error" if chosen and is_floating(kind) else "note"
        if loss.collided and (chosen or is_floating(kind)):
            about = "" if s.distinct_exact else "about "
            left = max(s.distinct - loss.collided, 0)
            lost = f", {loss.overflowed:,} of them infinite" if loss.overflowed else ""
            problem = (
                f"{about}{s.distinct:,} different keys become {left:,} in {number_format}: "
                f"{loss.collided:,} collide with another; {s.finite - loss.exact:,} of {s.finite:,} rows change{lost}"
            )
            yield _finding("MP009", severity, name, problem, _cure(advice), value=float(loss.collided), limit=0.0)
    if (s.largest_magnitude or 0.0) > 2.0**53 or (kind == "float" and (s.largest_magnitude or 0.0) > 2.0**24):
        holder, power = ("float64", 53) if (s.largest_magnitude or 0.0) > 2.0**53 else ("float32", 24)
        if is_floating(kind) or holder == "float64":
            problem = (
                f"keys reach {s.largest_magnitude:.17g}; from 2^{power} on {holder} does not hold every integer"
                + (", so some may have been merged already" if is_floating(kind) else "")
            )
            grave: Severity = "warning" if is_floating(kind) else "note"
            yield _finding("MP026", grave, name, problem, "keep keys as int64 or text from the source on")


def _casts(name: str, s: ColumnStatistics, advice: Advice, thresholds: Thresholds, policy: Policy) -> Iterator[Finding]:
    cure = _cure(advice)
    for number_format, loss in s.formats.items():
        grave: Severity = "error" if number_format == FORMAT_OF[policy] else "note"
        warn: Severity = "warning" if number_format == FORMAT_OF[policy] else "note"
        if loss.overflowed:
            problem = (
                f"{loss.overflowed:,} of {s.finite:,} numbers ({loss.overflowed / s.finite:.2%}) become infinite in "
                f"{number_format}; the largest magnitude is {s.largest_magnitude:g}"
            )
            yield _finding("MP001", grave, name, problem, cure, value=s.largest_magnitude, limit=65520.0)
        share = loss.flushed / s.finite
        if loss.flushed and share > thresholds.flushed_share:
            words = f"{loss.flushed:,} of {s.finite:,} numbers ({share:.2%})"
            problem = f"{words} are not zero and become zero in {number_format}"
            yield _finding("MP002", warn, name, problem, cure, value=share, limit=thresholds.flushed_share)
        share = loss.subnormal / s.finite
        if share > thresholds.subnormal_share:
            words = f"{loss.subnormal:,} of {s.finite:,} numbers ({share:.2%})"
            problem = f"{words} become subnormal in {number_format}: they lose digits"
            yield _finding("MP003", warn, name, problem, cure, value=share, limit=thresholds.subnormal_share)
        if loss.collided and loss.collided > 0.01 * s.distinct:
            about = "" if s.distinct_exact else "about "
            problem = (
                f"{about}{s.distinct:,} different integers become {max(s.distinct - loss.collided, 0):,} in "
                f"{number_format}: {loss.collided:,} collide with another"
            )
            yield _finding("MP009", warn, name, problem, cure, value=float(loss.collided), limit=0.0)
        elif loss.noise is not None and loss.noise > thresholds.noise and not loss.overflowed:
            problem = f"the rounding of {number_format} is {loss.noise:.2g} of the column's standard deviation"
            yield _finding("MP008", warn, name, problem, cure, value=loss.noise, limit=thresholds.noise)
    if s.beyond_float32:
        problem = f"{s.beyond_float32:,} numbers are beyond float32, the largest magnitude is {s.largest_magnitude:g}"
        yield _finding("MP026", "error", name, problem, cure)


def _shape(name: str, s: ColumnStatistics, advice: Advice, thresholds: Thresholds) -> Iterator[Finding]:
    cure = _cure(advice)
    zeros, ratio = s.zero_share or 0.0, scale_ratio(s)
    flag = s.distinct == 2 and s.whole
    bursts = zeros >= thresholds.burst_zero_share and (s.largest_magnitude or 0.0) > thresholds.burst_ratio and not flag
    if bursts:
        problem = f"{zeros:.1%} zeros, then numbers up to {s.largest_magnitude:g}"
        yield _finding("MP006", "warning", name, problem, cure, value=zeros, limit=thresholds.burst_zero_share)
    elif zeros >= thresholds.zero_share and not flag:
        problem = f"{zeros:.1%} of the numbers are zero"
        better = 'check whether zero means "not known"; a flag may serve better'
        yield _finding("MP005", "warning", name, problem, better, value=zeros, limit=thresholds.zero_share)
    if ratio is not None and ratio > thresholds.ratio:
        problem = f"its largest magnitude is {ratio:.3g} times its smallest"
        yield _finding("MP004", "warning", name, problem, cure, value=ratio, limit=thresholds.ratio)
    one_sign = s.negatives in (0, s.finite - s.zeros)
    if one_sign and not flag and not bursts and s.spread is not None:
        if s.spread < thresholds.low_spread:
            problem = f"its standard deviation is {s.spread:.3g} of its mean: the digits go to a constant"
            yield _finding("MP007", "note", name, problem, cure, value=s.spread, limit=thresholds.low_spread)
        elif s.spread > thresholds.high_spread and zeros < thresholds.zero_share:
            problem = f"its standard deviation is {s.spread:.3g} times its mean: few rows decide"
            yield _finding("MP007", "warning", name, problem, cure, value=s.spread, limit=thresholds.high_spread)


def _values(name: str, s: ColumnStatistics, thresholds: Thresholds) -> Iterator[Finding]:
    if s.infinities or s.nans:
        parts = [
            f"{count:,} {word}" for count, word in ((s.infinities, "infinite number(s)"), (s.nans, "NaN")) if count
        ]
        severity: Severity = "error" if s.infinities else "note"
        yield _finding("MP016", severity, name, f"holds {' and '.join(parts)}", "repair or reject these rows")
    words = set(words_of(name))
    ruled_out = words & set(thresholds.never_negative)
    minimum, maximum = s.minimum or 0.0, s.maximum or 0.0
    if ruled_out and s.negatives:
        problem = (
            f"{s.negatives:,} of {s.finite:,} numbers ({s.negatives / s.finite:.1%}) are negative, the smallest "
            f"{minimum:g}: `{sorted(ruled_out)[0]}` cannot be"
        )
        yield _finding("MP010", "error", name, problem, "treat them as missing (`valid_from: 0`), or repair the source",
                       value=minimum, limit=0.0)  # fmt: skip
    if "age" in words and maximum > _OLDEST and s.whole:
        problem = f"ages reach {maximum:g} years"
        yield _finding("MP010", "warning", name, problem, "treat them as missing", value=maximum, limit=float(_OLDEST))
    if "price" in words and s.zeros:
        problem = f"{s.zeros:,} prices are zero ({s.zeros / s.finite:.2%})"
        yield _finding("MP010", "note", name, problem, "check whether they are gifts or missing prices", value=0.0)
    for number, rows in ((s.minimum, s.minimum_rows), (s.maximum, s.maximum_rows)):
        if number is None or number not in _SENTINELS or s.distinct <= 3 or rows < 2:
            continue
        if number > 0 or rows == s.negatives:
            problem = f'{rows:,} rows ({rows / s.finite:.1%}) hold {number:g}, which often stands for "not known"'
            yield _finding("MP011", "warning", name, problem, "treat it as missing", value=float(number))


def _cure(advice: Advice) -> str:
    if advice.stored == "int32":
        return "make it an `id` or `categorical` feature: keys are int32 rows of a vocabulary, never floats"
    if advice.transform.kind == "none":
        return f"store it as {advice.stored}"
    return f"`transform: {advice.transform.kind}`, stored as {advice.stored}"


def _finding(
    code: str, severity: Severity, column: str, problem: str, cure: str, *, value: float | None = None,
    limit: float | None = None,
) -> Finding:  # fmt: skip
    return Finding(code=code, severity=severity, column=column, problem=problem, cure=cure, value=value, limit=limit)
