"""Run a graph as the ONNX standard says, float16 in float16, where ONNX Runtime on a processor would not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROWS: Final = 256
"""Rows of the run when an export is judged; it takes about a millisecond a row."""


@dataclass(frozen=True, slots=True)
class StrictRun:
    """What a graph computes when every node keeps to its own number format.

    Attributes:
        logits: (N,) float32.
        origins: Modules whose values are not finite though what they were computed from is.
    """

    logits: NDArray[np.float32]
    origins: tuple[str, ...]

    @property
    def non_finite(self) -> int:
        """Rows without a finite logit."""
        return int((~np.isfinite(self.logits)).reshape(len(self.logits), -1).any(axis=1).sum())


def strict_run(path: Path, feeds: Mapping[str, NDArray[Any]], homes: Mapping[str, str] | None = None) -> StrictRun:
    """Run a `model.onnx` with ONNX's reference implementation.

    ONNX Runtime has hardly any float16 kernels for processors: it computes float16 nodes in float32 and drops the
    casts, so a run there proves nothing about a GPU. The reference implementation computes each node in the format
    that the graph gives it. Sums differ from a tensor core's in their order alone.

    Args:
        path: The file.
        feeds: Its inputs: real rows.
        homes: As `write_core` gives them; without, `origins` names operators' outputs.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    model = onnx.load(str(path))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        values = dict(ReferenceEvaluator(model).run(None, dict(feeds), intermediate=True))
        finite = {name: _finite(value) for name, value in values.items()}
    origins = [
        (homes or {}).get(output, output)
        for node in model.graph.node
        for output in node.output
        if not finite.get(output, True) and all(finite.get(name, True) for name in node.input)
    ]
    return StrictRun(np.asarray(values["logit"], dtype=np.float32), tuple(dict.fromkeys(origins)))


def float16_nodes(path: Path) -> int:
    """How many nodes of a graph compute in float16, casts and look-ups left out."""
    return sum(kind == 10 for kind in _computed(path))


def bfloat16_nodes(path: Path) -> int:
    """How many nodes of a graph compute in bfloat16, casts and look-ups left out."""
    return sum(kind == 16 for kind in _computed(path))


def _computed(path: Path) -> list[int]:
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(str(path), load_external_data=False)).graph
    types = {info.name: info.type.tensor_type.elem_type for info in (*graph.value_info, *graph.output)}
    moving = ("Cast", "Gather", "Concat", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Transpose", "Split", "Expand")
    return [types.get(node.output[0], 0) for node in graph.node if node.op_type not in moving]


def _finite(value: Any) -> bool:
    array = np.asarray(value)
    return bool(np.isfinite(array).all()) if array.dtype.kind == "f" else True
