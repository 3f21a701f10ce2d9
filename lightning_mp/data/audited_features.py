"""The audit gate over features: a verdict on each number as it will be fed to the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_mp.data import transforms
from lightning_mp.data.audit.advice import advise
from lightning_mp.data.audit.gate import AuditGate
from lightning_mp.data.audit.number_findings import number_findings
from lightning_mp.data.audit.number_state import NumberState
from lightning_mp.data.audit.score import column_score, table_score
from lightning_mp.data.audit.statistics import column_statistics
from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.data.chosen_rows import chosen_rows
from lightning_mp.data.feature_columns import FeatureColumn
from lightning_mp.data.feature_spec import FeatureSpec
from lightning_mp.data.point_in_time import PointInTime
from lightning_mp.errors import DataError
from lightning_mp.float_formats import FLOAT16

_PIECE = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate says of the features.

    Attributes:
        gate: That was asked.
        score: Of the table; `None` without a numeric feature.
        columns: By feature: its score, transform, and findings in words.
    """

    gate: AuditGate
    score: float | None
    columns: dict[str, dict[str, Any]]

    @property
    def passed(self) -> bool:
        """Whether the score reaches the gate's."""
        return self.score is None or self.score >= self.gate.fail_under

    @property
    def worst(self) -> list[str]:
        """Features below the gate's score, the worst first; the worst one where none is."""
        order = sorted(self.columns, key=lambda name: self.columns[name]["score"])
        below = [name for name in order if self.columns[name]["score"] < self.gate.fail_under]
        return below or order[:1]

    def to_record(self, cured: Sequence[str]) -> dict[str, Any]:
        """Plain JSON for the store's manifest, where it stands beside the schema.

        Args:
            cured: Features that were given the advised transform.
        """
        return {
            "policy": self.gate.policy,
            "fail_under": self.gate.fail_under,
            "score": self.score,
            "cured": list(cured),
            "columns": self.columns,
        }


Made = tuple[list[FeatureColumn], dict[str, PointInTime]]


def through_gate(
    specs: Sequence[FeatureSpec],
    made: Made,
    make: Callable[[Sequence[FeatureSpec]], Made],
    training: npt.NDArray[np.bool_],
    gate: AuditGate,
) -> tuple[Made, dict[str, Any]]:
    """Pass the features, cure them where the gate says so, or refuse.

    Args:
        specs: As declared.
        made: What was made of them.
        make: Makes features of others.
        training: (N,) rows of the training part.
        gate: What is asked.

    Returns:
        The features, and the verdict as plain JSON.

    Raises:
        DataError: They are worth less than the gate asks for, after the cure where there is one.
    """
    verdict, cured = audited(made[0], training, gate), []
    if gate.cure and not verdict.passed:
        cured = [spec.name for spec in specs if spec.name in verdict.worst]
        made = make(cured_specs(specs, verdict))
        verdict = audited(made[0], training, gate)
    require_passed(verdict, cured)
    return made, verdict.to_record(cured)


def audited(made: Sequence[FeatureColumn], training: npt.NDArray[np.bool_], gate: AuditGate) -> Verdict:
    """Audit the numeric features, behind their transforms, over the training rows.

    Args:
        made: The features.
        training: (N,) rows of the training part.
        gate: What is asked.
    """
    columns = {}
    for column in made:
        if column.feature.kind == "numeric" and column.feature.role != "weight":
            columns[column.feature.name] = _judged(column, training, gate)
    return Verdict(gate=gate, score=table_score([entry["score"] for entry in columns.values()]), columns=columns)


def _judged(column: FeatureColumn, training: npt.NDArray[np.bool_], gate: AuditGate) -> dict[str, Any]:
    rows = chosen_rows(column.values, training)
    rows = rows.reshape(len(rows), -1)
    score, words = 100.0, []
    # A flag beside a size is a flag and nothing to judge; the size of what is zero says nothing either.
    sizes = chosen_rows(rows, rows[:, 1] == 0)[:, :1] if rows.shape[1] == 2 else rows
    if len(sizes):
        state = NumberState()
        for start in range(0, len(sizes), _PIECE):
            values = np.ascontiguousarray(sizes[start : start + _PIECE, 0], dtype=np.float64)
            state.update(_without_noise(column, values))
        statistics = column_statistics(state)
        score = column_score(statistics, gate.policy) or 0.0
        thresholds = Thresholds()
        advice = advise(None, state, statistics, thresholds, gate.policy)
        found = number_findings(None, statistics, advice, kind="double", thresholds=thresholds, policy=gate.policy)
        words = [f"{entry.code}: {entry.problem}" for entry in found if entry.severity != "note"]
    return {"score": score, "transform": column.feature.transform.kind, "findings": words}


def _without_noise(column: FeatureColumn, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A mean that stands in for missing values is 0 or 1e-17 after a z-score, as the sums were rounded: no loss."""
    stand_in = column.feature.missing_value
    if stand_in is None or column.feature.missing == "constant":
        return values
    there = transforms.apply(column.feature.transform, [stand_in]).ravel()[0]
    if abs(there) >= FLOAT16.smallest_normal:
        return values
    return np.where(values == there, 0.0, values)


def cured_specs(specs: Sequence[FeatureSpec], verdict: Verdict) -> list[FeatureSpec]:
    """The features with the advised transform for those that the gate found wanting.

    Args:
        specs: As declared.
        verdict: On what was made of them.
    """
    return [
        replace(spec, transform="auto") if spec.name in verdict.worst and spec.kind == "numeric" else spec
        for spec in specs
    ]


def require_passed(verdict: Verdict, cured: Sequence[str]) -> None:
    """Refuse features that are worth less than the gate asks for.

    Args:
        verdict: On the features.
        cured: Features that were given the advised transform already.

    Raises:
        DataError: They are; the worst ones are named with what was found.
    """
    if verdict.passed:
        return
    shown = []
    for name in verdict.worst[:5]:
        entry = verdict.columns[name]
        found = f": {entry['findings'][0]}" if entry["findings"] else ""
        shown.append(f"`{name}` {entry['score']:.0f} (transform {entry['transform']}){found}")
    problem = (
        f"the audit gate: the features score {verdict.score:.0f} of 100 for {verdict.gate.policy}, "
        f"{verdict.gate.fail_under:g} are asked for; {'; '.join(shown)}"
    )
    hint = (
        "drop these features, or lower `audit.fail_under`"
        if cured
        else "give these features `transform: auto`, or all of them with `audit: {cure: true}`"
    )
    raise DataError(problem, hint)
