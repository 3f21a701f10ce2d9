"""How large every value inside an exported graph becomes on real rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_mp.export.encoded_rows import EncodedRows
from lightning_mp.float_formats import FLOAT16
from lightning_mp.hardware.session import open_session

_BATCH: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRange:
    """What one value inside a graph was on real rows.

    Attributes:
        value: Its name in the graph.
        operator: The operator that computes it.
        module: The innermost module that computes it; the module itself is `""`.
        largest: Largest magnitude; infinite where it was not finite.
        non_finite: How many numbers were not finite.
        below_normal: Share of its numbers other than zero that lie below float16's smallest normal one.
    """

    value: str
    operator: str
    module: str
    largest: float
    non_finite: int
    below_normal: float


def activation_ranges(path: Path, homes: Mapping[str, str], rows: EncodedRows) -> tuple[ActivationRange, ...]:
    """Run a float32 `model.onnx` and look at everything that it computes, between its modules and inside of them.

    Hooks on modules would see inputs and outputs alone; a product, an exponential or an attention logit inside of a
    `forward` would be missed.

    Args:
        path: The file. A second one, with every value as an output, is written beside it and removed.
        homes: As `write_core` gives them.
        rows: Real rows.

    Returns:
        One entry a floating-point value, in the order they are computed.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(model)
    floats = {info.name for info in (*inferred.graph.value_info, *model.graph.output) if _is_float(info)}
    operators = {value: node.op_type for node in model.graph.node for value in node.output if value in floats}
    there = {output.name for output in model.graph.output}
    model.graph.output.extend(info for info in inferred.graph.value_info if info.name in operators.keys() - there)
    wide = path.with_name("every_value.onnx")
    wide.write_bytes(model.SerializeToString())
    try:
        session = open_session(wide, "cpu", optimise=False)
    finally:
        wide.unlink()
    seen = {value: _Range() for value in operators}
    for start in range(0, len(rows), _BATCH):
        answers = session.run(list(operators), rows[start : start + _BATCH].feeds)
        for range_, numbers in zip(seen.values(), answers, strict=True):
            range_.add(numbers)
    return tuple(
        ActivationRange(
            value=value,
            operator=operators[value],
            module=homes.get(value, ""),
            largest=found.largest,
            non_finite=found.non_finite,
            below_normal=found.small / found.numbers if found.numbers else 0.0,
        )
        for value, found in seen.items()
    )


def largest_by_module(ranges: Iterable[ActivationRange]) -> dict[str, float]:
    """Largest magnitude that each module computes, what the modules inside of it compute included."""
    largest: dict[str, float] = {}
    for entry in ranges:
        parts = entry.module.split(".")
        for end in range(len(parts) + 1):
            name = ".".join(parts[:end])
            largest[name] = max(largest.get(name, 0.0), entry.largest)
    return largest


class _Range:
    def __init__(self) -> None:
        self.largest = 0.0
        self.non_finite = self.small = self.numbers = 0

    def add(self, numbers: NDArray[Any]) -> None:
        size = np.abs(numbers)
        finite = np.isfinite(size)
        if not finite.all():
            self.non_finite += int(size.size - finite.sum())
            self.largest = np.inf
        self.largest = max(self.largest, float(size.max(initial=0.0, where=finite)))
        other = size > 0
        self.numbers += int(other.sum())
        self.small += int((other & (size < FLOAT16.smallest_normal)).sum())


def _is_float(info: Any) -> bool:
    import onnx

    return bool(info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT)
