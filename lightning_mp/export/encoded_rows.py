"""Encoded rows, and the logits that a module and a session give for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Logits = NDArray[np.float32]
_BATCH = 4096


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as a network takes them.

    Attributes:
        ids: (N, F) int64 vocabulary rows; F may be 0.
        dense: (N, D) float32 transformed numbers; D may be 0.
        others: What else a network takes, by name, (N, ...): `multi` (N, M, L), `history` (N, L) and `target` (N,)
            int64, or all inputs of a module that is not ours.
    """

    ids: NDArray[np.int64]
    dense: NDArray[np.float32]
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Mapping[str, NDArray[Any]]) -> EncodedRows:
        """Rows of inputs that have names of their own, (N, ...) each."""
        rows = len(next(iter(inputs.values())))
        return cls(np.empty((rows, 0), dtype=np.int64), np.empty((rows, 0), dtype=np.float32), dict(inputs))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> EncodedRows:
        others = {name: values[rows] for name, values in self.others.items()}
        return EncodedRows(self.ids[rows], self.dense[rows], others)

    def only(self, names: Collection[str]) -> EncodedRows:
        """The same rows without the inputs that are not named."""
        ids = self.ids if "ids" in names else self.ids[:, :0]
        dense = self.dense if "dense" in names else self.dense[:, :0]
        return EncodedRows(ids, dense, {name: values for name, values in self.others.items() if name in names})

    @property
    def feeds(self) -> dict[str, NDArray[Any]]:
        """Inputs of `model.onnx`: those of `ids` and `dense` that have columns, and the others."""
        ours = {name: getattr(self, name) for name in ("ids", "dense") if getattr(self, name).shape[1]}
        return {**ours, **self.others}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The batch of a module; it shares no memory with these arrays."""
        return {name: torch.from_numpy(np.array(values)) for name, values in self.feeds.items()}


def module_logits(module: nn.Module, rows: EncodedRows) -> Logits:
    """Logits of a module in evaluation mode on the CPU, (N,) or (N, T) float32."""

    def answer(part: EncodedRows) -> Logits:
        return np.asarray(module(part.tensors()).float().numpy(), dtype=np.float32)

    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        return _in_batches(answer, rows, _BATCH)


def session_logits(session: Any, rows: EncodedRows, batch: int = _BATCH) -> Logits:
    """Logits of a session of `model.onnx`, (N,) or (N, T) float32, `batch` rows at a time."""
    return _in_batches(lambda part: session.run(["logit"], part.feeds)[0], rows, batch)


def pipeline_logits(session: Any, raw: Mapping[str, NDArray[Any]]) -> Logits:
    """Logits of a session of `pipeline.onnx`, (N,) or (N, T) float32."""
    logits: Logits = session.run(["logit"], dict(raw))[0]
    return logits


def _in_batches(answer: Callable[[EncodedRows], Logits], rows: EncodedRows, batch: int) -> Logits:
    parts = [answer(rows[start : start + batch]) for start in range(0, len(rows), batch)]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
