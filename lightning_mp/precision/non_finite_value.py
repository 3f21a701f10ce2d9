"""Where in a tensor the values that are not finite are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

_MOST_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteValue:
    """Where the first value that is not finite stood.

    Args:
        step: `Trainer.global_step` at that batch.
        batch: Number of the batch in its epoch.
        origin: `"forward"` if the batch, an output or the loss was not finite, else `"backward"`: a gradient was not.
        module: Name of the module; empty for the batch itself and where none could be told.
        tensor: `batch['dense']` and the like, `output`, the name of a parameter, or that with `.grad`.
        kind: `"nan"` if there is one among the values, else `"inf"`.
        count: Number of values that are not finite.
        rows: The first ten rows with one: positions along the first axis.
        columns: The first ten columns with one: positions along the last axis; empty for a tensor of one axis.

    Example:
        >>> value = non_finite_value(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), step=4, batch=4,
        ...     origin="forward", module="", tensor="batch[0]")
        >>> value.kind, value.rows, value.columns
        ('nan', (1,), (1,))
    """

    step: int
    batch: int
    origin: Literal["forward", "backward"]
    module: str
    tensor: str
    kind: Literal["nan", "inf"]
    count: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """The value in plain Python, as JSON takes it."""
        return {**asdict(self), "rows": list(self.rows), "columns": list(self.columns)}

    def __str__(self) -> str:
        """In words, as the warning says it."""
        place = (
            f"`{self.module}`, `{self.tensor}`" if self.module else f"`{self.tensor}`" if self.tensor else "no tensor"
        )
        rows = f", rows {_listed(self.rows)}" if self.rows else ""
        columns = f", columns {_listed(self.columns)}" if self.columns else ""
        return f"{self.kind} in the {self.origin} pass of batch {self.batch} (step {self.step}): {place}{rows}{columns}"


def non_finite_value(
    values: Tensor, *, step: int, batch: int, origin: Literal["forward", "backward"], module: str, tensor: str
) -> NonFiniteValue | None:
    """Look for values that are not finite; reads the device.

    Args:
        values: Any shape and type, dense or sparse; of a sparse one, rows are those of the whole.
        step: Number of the step.
        batch: Number of the batch.
        origin: Which pass it is about.
        module: Name of the module.
        tensor: Name of the tensor.

    Returns:
        Where they are, or None if all values are finite.
    """
    if not values.is_floating_point():
        return None
    if values.is_sparse:
        values = values.coalesce()
        index, own = values.indices()[0], values.values()
    else:
        index, own = None, values.detach()
    own = own.float() if own.dtype.itemsize == 1 else own  # torch asks no format of 8 bits whether it is finite
    bad = ~torch.isfinite(own)
    if not bool(bad.any()):
        return None
    places = bad.nonzero()
    rows = places[:, 0] if own.dim() else places.new_zeros(1)
    rows = rows if index is None else index[rows]
    columns = places[:, -1] if own.dim() > 1 else places.new_zeros(0)
    return NonFiniteValue(
        step=step,
        batch=batch,
        origin=origin,
        module=module,
        tensor=tensor,
        kind="nan" if bool(torch.isnan(own).any()) else "inf",
        count=int(bad.sum()),
        rows=tuple(torch.unique(rows)[:_MOST_SHOWN].tolist()),
        columns=tuple(torch.unique(columns)[:_MOST_SHOWN].tolist()),
    )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) + (" ..." if len(numbers) == _MOST_SHOWN else "")
