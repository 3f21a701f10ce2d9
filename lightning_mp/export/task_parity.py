"""Parity of logits of several tasks: each by itself, and the worst of them for the gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.export.judged_rows import JudgedRows
from lightning_mp.export.parity import Comparison

_LOWER_IS_WORSE: Final = ("overlap_mean", "overlap_min", "same_order", "lists", "length", "k")


def compared(comparison: Comparison, judged: JudgedRows, tasks: Sequence[str] = ()) -> dict[str, Any]:
    """The report of a comparison, with its slices; of several tasks the worst number of each kind, and each by itself.

    Args:
        comparison: Logits (N,), or (N, T) with labels (N, T) or none.
        judged: The rows it was made on.
        tasks: T names.

    Returns:
        As `Comparison.report`, `slices` as `JudgedRows.by_slice`; and where there are tasks `tasks`, by name.
    """
    if comparison.reference.ndim == 1:
        labels = comparison.labels
        one = replace(comparison, labels=labels[:, 0] if labels is not None and labels.ndim == 2 else labels)
        return {**one.report(), "slices": judged.by_slice(comparison.reference, comparison.exported)}
    reports: dict[str, dict[str, Any]] = {}
    for column, name in enumerate(tasks):
        part = Comparison(
            reference=comparison.reference[:, column],
            exported=comparison.exported[:, column],
            reference_lists=comparison.reference_lists[:, column],
            exported_lists=comparison.exported_lists[:, column],
            length=comparison.length,
            labels=_labels(comparison.labels, column, len(tasks)),
            float32_error=comparison.float32_error,
        )
        slices = judged.by_slice(part.reference, part.exported, column)
        reports[name] = {**part.report(), "slices": slices}
    return {**_worst(reports), "tasks": reports}


def _labels(labels: NDArray[np.float32] | None, column: int, tasks: int) -> NDArray[np.float32] | None:
    return labels[:, column] if labels is not None and labels.ndim == 2 and labels.shape[1] == tasks else None


def _worst(reports: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    every = list(reports.values())
    merged: dict[str, Any] = {"rows": every[0]["rows"]}
    for section in ("non_finite", "logit", "ranking"):
        merged[section] = {
            key: (min if key in _LOWER_IS_WORSE else max)(report[section][key] for report in every)
            for key in every[0][section]
        }
    merged["mean_score"] = max((r["mean_score"] for r in every), key=lambda part: part["relative_difference"])
    for section in ("auc", "ndcg"):
        merged[section] = max(
            (report[section] for report in every), key=lambda part: (part["enough"], part["difference"] or 0.0)
        )
    name = max(reports, key=lambda task: reports[task]["slices"]["worst_logit_p99"] or 0.0)
    worst = reports[name]["slices"]
    told = None if worst["worst"] is None else f"{name}: {worst['worst']}"
    merged["slices"] = {**worst, "worst": told}
    return merged
