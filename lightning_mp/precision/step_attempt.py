"""One optimizer step that was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer


@dataclass(slots=True, kw_only=True, eq=False)
class StepAttempt:
    """One optimizer step that was asked for; tensors in it stay on their device until they are needed.

    Args:
        step: Number of the step, as the caller counts.
        optimizer: The optimizer.
        position: Its position in the list of optimizers.
        batch: Number of the batch it belongs to.
        clips: Whether its gradients may have been clipped since, which spreads a NaN over all of them.
        losses: Losses of its batches, as they were given to `backward`.
        taken: True once the optimizer ran and settles such things itself no longer.
        found_inf: Of a fused optimizer: above zero if it skipped the step inside.
        scale: Of a fused optimizer: loss scale of the step.
        names: Parameters whose gradients `finite` is about.
        finite: One flag a gradient, taken before clipping, if layers were looked for.
        outputs: Layers in the order they ran and one flag each, if they were traced.
    """

    step: int
    optimizer: Optimizer
    position: int
    batch: int
    clips: bool
    losses: list[Tensor]
    taken: bool = False
    found_inf: Tensor | None = None
    scale: Tensor | None = None
    names: list[str] = field(default_factory=list)
    finite: Tensor | None = None
    outputs: list[tuple[str, Tensor]] = field(default_factory=list)
