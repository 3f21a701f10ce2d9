"""Rows that an export is judged on, and how to look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.export.encoded_rows import EncodedRows, Logits
from lightning_mp.export.parity import ENOUGH, SATURATED
from lightning_mp.export.ranking_change import auc

MOST_SLICES: Final = 40
_VALUES: Final = 4
_DISTINCT: Final = 64
ENOUGH_ROWS: Final = 200
"""Rows from which a slice is judged: below, its 99 % quantile is its largest difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRows:
    """Rows that an export is judged on.

    Attributes:
        split: Where they come from: `"test"`, `"validation"`, `"train"`, or `"given"`.
        rows: The rows, encoded.
        labels: (N,) or (N, T) in [0, 1], or `None`.
        sizes: Vocabulary sizes of the inputs that hold ids, in a shape that broadcasts with a row of the input.
        items: Columns of each input that describe the item and vary within a list.
        slices: Parts of the rows by name, (N,) bool each.
        outside: How many ids of an input lay outside of their vocabulary and became 0, by input.
    """

    split: str
    rows: EncodedRows
    labels: NDArray[np.float32] | None = None
    sizes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    items: Mapping[str, NDArray[np.intp]] = field(default_factory=dict)
    slices: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)

    def by_slice(self, reference: Logits, exported: Logits, task: int = 0) -> dict[str, Any]:
        """What an export changed, slice by slice.

        Args:
            reference: (N,) logits of the trained module.
            exported: (N,) logits of the file.
            task: Column of the labels that belongs to them.

        Returns:
            `worst_logit_p99` over slices of at least 200 rows and which it is (`worst`), and `slices`: for each its
            `rows`, `logit_p99`, `mean_score_difference` (relative), and `auc_difference` where it is defined.
        """
        found: dict[str, dict[str, Any]] = {}
        usable = np.isfinite(reference) & np.isfinite(exported)
        for name, mask in self.slices.items():
            part = mask & usable
            if not part.any():
                continue
            ours, theirs = (x[part].astype(np.float64) for x in (reference, exported))
            away = np.abs(ours - theirs) / np.maximum(1.0, np.abs(ours) / SATURATED)
            before, after = (float(np.mean(1.0 / (1.0 + np.exp(-np.clip(x, -700, 700))))) for x in (ours, theirs))
            found[name] = {
                "rows": int(part.sum()),
                "logit_p99": float(np.quantile(away, 0.99)),
                "mean_score_difference": abs(after / before - 1.0) if before else 0.0,
                "auc_difference": self._auc_difference(part, ours, theirs, task),
            }
        judged = {name: entry["logit_p99"] for name, entry in found.items() if entry["rows"] >= ENOUGH_ROWS}
        worst = max(judged, key=judged.__getitem__, default=None)
        return {"worst_logit_p99": None if worst is None else judged[worst], "worst": worst, "slices": found}

    def _auc_difference(self, part: NDArray[np.bool_], ours: Any, theirs: Any, task: int) -> float | None:
        if self.labels is None or (self.labels.ndim == 2 and task >= self.labels.shape[1]):
            return None
        labels = (self.labels if self.labels.ndim == 1 else self.labels[:, task])[part] > 0
        if int(labels.sum()) * int((~labels).sum()) < ENOUGH["auc"]:
            return None
        before, after = auc(labels, ours), auc(labels, theirs)
        return None if before is None or after is None else abs(after - before)


def slices_of(columns: Mapping[str, NDArray[Any]], labels: NDArray[np.float32] | None) -> dict[str, NDArray[np.bool_]]:
    """Parts of rows to look at apart: the commonest values of each column of few values, and both labels.

    Args:
        columns: (N,) values by name, as a user knows them; those of many different values are left out, but for what
            is missing or unknown (`""`, or `None`).
        labels: (N,) in [0, 1], or `None`.

    Example:
        >>> {name: int(mask.sum()) for name, mask in slices_of({"brand": np.array(["a", "b", "a"])}, None).items()}
        {'brand = a': 2, 'brand = b': 1}
    """
    found: dict[str, NDArray[np.bool_]] = {}
    for name, values in columns.items():
        kinds, counts = np.unique(values, return_counts=True)
        if len(kinds) < 2:
            continue
        if len(kinds) <= _DISTINCT:
            for kind in kinds[np.argsort(-counts, kind="stable")[:_VALUES]]:
                found[f"{name} = {kind if str(kind) else 'unknown'}"] = values == kind
        elif "" in kinds:
            found[f"{name} = unknown"] = values == ""
    if labels is not None:
        found |= {"label > 0": labels > 0, "label = 0": labels <= 0}
    return dict(list(found.items())[-MOST_SLICES:])
