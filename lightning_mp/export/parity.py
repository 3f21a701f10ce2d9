"""Whether the exported model answers as the trained one does: measured on real rows, judged by gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.errors import ConfigurationError
from lightning_mp.export.codes import code_of_gate
from lightning_mp.export.encoded_rows import Logits
from lightning_mp.export.precision_policy import FilePrecision
from lightning_mp.export.ranking_change import auc, ndcg, top_lists

SATURATED: Final = 16.0
"""From this logit on the score is 1 to seven digits; differences of larger logits are taken relative to it."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One demand on a report.

    Attributes:
        path: Where the number stands in the report, `section.key`.
        limit: Largest value that passes; smallest one where `at_least` is true.
        at_least: Direction of the limit.
    """

    path: str
    limit: float
    at_least: bool = False


_SAME: Final = (Gate("non_finite.reference", 0), Gate("non_finite.exported", 0))
_ROUNDED: Final = (
    *_SAME,
    Gate("logit.p99", 5e-3),
    Gate("ranking.overlap_mean", 0.995, at_least=True),
    Gate("ranking.ties_added", 0.01),
    Gate("auc.difference", 1e-4),
    Gate("ndcg.difference", 1e-3),
    Gate("mean_score.relative_difference", 1e-3),
    Gate("slices.worst_logit_p99", 5e-3),
)
GATES: Final[dict[FilePrecision, tuple[Gate, ...]]] = {
    "fp32": (*_SAME, Gate("logit.max", 1e-4), Gate("ranking.overlap_min", 1.0, at_least=True)),
    "fp16-storage": _ROUNDED,
    "fp16-mixed": (Gate("strict.non_finite", 0), Gate("strict.logit_p99", 5e-3), *_ROUNDED),
    "int8-dynamic": _ROUNDED,
}
"""Demands by precision policy. Probabilities have none of their own: at a click rate of 4e-4 a difference of 5e-4
leaves a fifth of the top ten wrong."""
ENOUGH: Final = {"auc": 100_000, "ndcg": 100}
"""Pairs of a clicked and an unclicked row, and lists with a relevant row, from which AUC and NDCG are judged: below,
one pair that changes places moves them by more than their limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Logits of the trained module and of the exported file for the same rows.

    Attributes:
        reference: (N,) float32, of the module in float32.
        exported: (N,) float32, of the file.
        reference_lists: (lists * length,) float32, list after list.
        exported_lists: As `reference_lists`.
        length: Rows a list.
        labels: (N,) in [0, 1], or `None`.
        float32_error: Largest error of float32 itself in a logit, relative where the score is saturated.
    """

    reference: Logits
    exported: Logits
    reference_lists: Logits
    exported_lists: Logits
    length: int
    labels: NDArray[np.float32] | None = None
    float32_error: float = 0.0

    def report(self) -> dict[str, Any]:
        """The numbers that `GATES` judge, and a few more; plain values for JSON, `None` where undefined."""
        finite = np.isfinite(self.reference) & np.isfinite(self.exported)
        ours, theirs = (x[finite].astype(np.float64) for x in (self.reference, self.exported))
        away = np.abs(ours - theirs)
        relative = away / np.maximum(1.0, np.abs(ours) / SATURATED)
        ranking: dict[str, Any] = dict(
            top_lists(self.reference_lists, self.exported_lists, self.length, 4.0 * self.float32_error)
        )
        ranking["ties_added"] = ranking["ties_exported"] - ranking["ties_reference"]
        before, after = (float(_score(x).mean()) if len(x) else 0.0 for x in (ours, theirs))
        return {
            "rows": len(self.reference),
            "non_finite": {
                "reference": int((~np.isfinite(self.reference)).sum()),
                "exported": int((~np.isfinite(self.exported)).sum()),
            },
            "logit": {
                "max": float(relative.max(initial=0.0)),
                "p99": float(np.quantile(relative, 0.99)) if len(relative) else 0.0,
                "max_absolute": float(away.max(initial=0.0)),
                "largest": float(np.abs(ours).max(initial=0.0)),
            },
            "ranking": ranking,
            "mean_score": {
                "reference": before,
                "exported": after,
                "relative_difference": abs(after / before - 1.0) if before else 0.0,
            },
            **self._quality(finite, ours, theirs),
        }

    def _quality(self, finite: NDArray[np.bool_], ours: Any, theirs: Any) -> dict[str, Any]:
        if self.labels is None:
            nothing = {"reference": None, "exported": None, "difference": None, "of": 0, "enough": False}
            return {"auc": nothing, "ndcg": nothing}
        labels = self.labels[finite]
        positives = int((labels > 0).sum())
        areas = [auc(labels > 0, x) for x in (ours, theirs)]
        (before, lists), (after, _) = (ndcg(labels, x) for x in (ours, theirs))
        return {
            "auc": _change(areas[0], areas[1], positives * (len(labels) - positives), ENOUGH["auc"]),
            "ndcg": _change(before, after, lists, ENOUGH["ndcg"]),
        }


def judge(
    report: dict[str, Any], precision: FilePrecision, limits: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Hold a report against the gates of a precision.

    Args:
        report: As `Comparison.report` gives it, with the sections `slices` and `strict` where gates ask for them.
        precision: Of the file.
        limits: Limits other than the defaults, by the gate's path.

    Returns:
        For each gate its `code`, `path`, `limit`, `at_least`, the `value` and whether it is `ok`. A value that is
        undefined on these rows, such as an AUC of one class, or that too few rows make, is `None` and passes.

    Raises:
        ConfigurationError: `limits` names a gate that there is none of.
    """
    gates = {gate.path: gate for gate in GATES[precision]}
    for path, limit in (limits or {}).items():
        if path not in gates:
            raise ConfigurationError(f"there is no gate `{path}` for {precision}", f"use one of {', '.join(gates)}")
        gates[path] = replace(gates[path], limit=limit)
    verdicts = []
    for gate in gates.values():
        section, _, key = gate.path.partition(".")
        part = report.get(section, {key: None}) if section == "slices" else report[section]
        value = part[key] if part.get("enough", True) else None
        ok = value is None or (value >= gate.limit if gate.at_least else value <= gate.limit)
        verdicts.append({"code": code_of_gate(gate.path), **asdict(gate), "value": value, "ok": bool(ok)})
    return verdicts


def _change(before: float | None, after: float | None, count: int, enough: int) -> dict[str, Any]:
    difference = None if before is None or after is None else abs(after - before)
    return {"reference": before, "exported": after, "difference": difference, "of": count, "enough": count >= enough}


def _score(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))
