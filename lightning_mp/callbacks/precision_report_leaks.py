"""Which column of the batches tells the label by itself: a target that leaked into the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_mp.data.audit.thresholds import Thresholds
from lightning_mp.data.rank_auc import rank_auc

_ROWS, _BATCHES, _COLUMNS = 4096, 8, 1024
_LABELS = ("labels", "label", "y", "click", "clicked")
_NO_FEATURES = ("weight", "weights", "row", "group", "target")
# With twenty rows of each class a column of pure noise has an AUC within 0.5 +- 0.45 but once in 1e11.
_RARER = 20


class LabelSample:
    """The first rows of a training, column by column against the label.

    A label is taken from a dict's `labels` (`label`, `y`, `click`), or is the last of a sequence of tensors; only one
    of two values counts. Floating columns are compared; ids are not, for their order says nothing.

    Args:
        names: Names of the columns of `dense`, where they are known.

    Attributes:
        full: Whether it wants no more batches.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.full = False
        self._names = list(names)
        self._columns: list[dict[str, npt.NDArray[np.float64]]] = []
        self._labels: list[npt.NDArray[np.float64]] = []

    def add(self, batch: Any) -> None:
        """Take a batch; on a GPU it is waited for, eight times a run at most."""
        label, features = _parts(batch)
        if label is None:
            self.full = True
            return
        self._labels.append(_floats(label).reshape(len(label)))
        self._columns.append(dict(self._of(features, len(label))))
        self.full = len(self._labels) >= _BATCHES or sum(map(len, self._labels)) >= _ROWS

    def verdicts(self) -> list[dict[str, Any]]:
        """Columns that tell the label: `column`, `auc` of it alone, `rows`; the worst first."""
        if not self._labels:
            return []
        label = np.concatenate(self._labels)
        values = np.unique(label)
        positive = label == values[-1]
        if len(values) != 2 or min(positive.sum(), (~positive).sum()) < _RARER:
            return []
        found: list[dict[str, Any]] = []
        for name in self._columns[0]:
            parts = [columns[name] for columns in self._columns if name in columns]
            column = np.concatenate(parts)
            if len(column) != len(label) or not np.isfinite(column).all():
                continue
            auc = rank_auc(positive, column)
            if auc is not None and max(auc, 1 - auc) > Thresholds().auc:
                found.append({"column": name, "auc": round(auc, 6), "rows": len(label)})
        return sorted(found, key=lambda entry: -abs(entry["auc"] - 0.5))[:10]

    def _of(self, features: Mapping[str, Tensor], rows: int) -> list[tuple[str, npt.NDArray[np.float64]]]:
        columns: list[tuple[str, npt.NDArray[np.float64]]] = []
        for key, tensor in features.items():
            if not tensor.is_floating_point() or tensor.dim() not in (1, 2) or len(tensor) != rows:
                continue
            wide = _floats(tensor).reshape(rows, -1)[:, :_COLUMNS]
            named = key == "dense" and len(self._names) == wide.shape[1]
            names = self._names if named else [f"{key}, column {i}" for i in range(wide.shape[1])]
            columns += [(key if tensor.dim() == 1 else names[i], wide[:, i]) for i in range(wide.shape[1])]
        return columns


def _parts(batch: Any) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The label (B,), and the features by name."""
    if isinstance(batch, Mapping):
        key = next((name for name in _LABELS if _is_label(batch.get(name))), None)
        rest = {str(n): t for n, t in batch.items() if isinstance(t, Tensor) and n != key and n not in _NO_FEATURES}
        return (None if key is None else batch[key]), rest
    if isinstance(batch, tuple | list) and len(batch) >= 2 and _is_label(batch[-1]):
        return batch[-1], {f"input {i}": part for i, part in enumerate(batch[:-1]) if isinstance(part, Tensor)}
    return None, {}


def _is_label(value: Any) -> bool:
    return isinstance(value, Tensor) and len(value.shape) > 0 and value.numel() == len(value) > 0


def _floats(tensor: Tensor) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = tensor.detach().to("cpu", torch.float64).numpy()
    return values
