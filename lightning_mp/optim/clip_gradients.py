"""Clip gradients, dense or sparse, scaled or not, without waiting for the device."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_mp.optim.coalesced import coalesced

_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Clipped:
    """What a clipping found; scalar tensors on the device of the gradients, worked out when they are asked for.

    Args:
        norm: 2-norm of all gradients before, as if unscaled.
        max_norm: The largest norm that was left.
        beyond: Whether an element was beyond its bounds, where elements were clipped.
    """

    norm: Tensor
    max_norm: float | None = None
    beyond: Tensor | None = None

    @classmethod
    def gathered(cls, found: Sequence[Clipped]) -> Clipped:
        """Those of several clippings to one bound, as one with vectors.

        Args:
            found: One or more, all of the same arguments.
        """
        norm = torch.stack([one.norm.to(found[0].norm) for one in found])
        beyond = [one.beyond.to(norm.device) for one in found if one.beyond is not None]
        return cls(norm=norm, max_norm=found[0].max_norm, beyond=torch.stack(beyond) if beyond else None)

    @property
    def finite(self) -> Tensor:
        """Whether all gradients were finite, bool."""
        return self.norm.isfinite()

    @property
    def clipped(self) -> Tensor:
        """Whether a gradient was changed, bool."""
        if self.max_norm is None:
            return torch.zeros_like(self.norm, dtype=torch.bool) if self.beyond is None else self.beyond
        return (self.norm + _EPSILON > self.max_norm) & self.finite


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[Tensor],
    *,
    max_norm: float | None = None,
    max_value: float | None = None,
    scale: Tensor | None = None,
) -> Clipped | None:
    """Clip the gradients of parameters in place, all together by their norm, or each element by its size.

    The norm is computed in float32 at least, whatever the gradients are. A sparse gradient is taken as the dense one
    that it stands for: rows that occur twice are added first. Gradients that are not all finite are left as they are,
    so that a scaler, and whoever looks for the cause, sees them. Nothing is read from the device. On a CPU gradients
    within the norm are not touched; anywhere else they are multiplied by 1, as one would have to wait to know.

    Args:
        parameters: Those without a gradient are passed over.
        max_norm: Largest norm; or
        max_value: Largest size of an element.
        scale: Loss scale that the gradients still carry, a scalar tensor; None where they carry none.

    Returns:
        None where no parameter has a gradient.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0]) * 1024
        >>> clip_gradients([weight], max_norm=1.0, scale=torch.tensor(1024.0)).norm.item()
        5.0
        >>> weight.grad / 1024
        tensor([0.6000, 0.8000])

    Source:
        The formula of `torch.nn.utils.clip_grad_norm_`, with its 1e-6.
    """
    values = _values(parameters)
    if not values:
        return None
    groups = _by_device(values)
    norm = _norm(groups)
    unscaled = norm if scale is None else norm / scale.to(norm.device)
    if max_norm is not None:
        if not _stays(unscaled, max_norm):
            # A norm that is not finite counts as zero here: the factor is 1 then.
            factor = (max_norm / (unscaled.nan_to_num(0.0, 0.0) + _EPSILON)).clamp(max=1.0)
            for group in groups:
                torch._foreach_mul_(group, factor.to(group[0].device))
        return Clipped(norm=unscaled, max_norm=max_norm)
    limit = math.inf if max_value is None else max_value
    bound = torch.where(norm.isfinite(), limit if scale is None else limit * scale.to(norm.device), math.inf)
    beyond = torch.zeros((), dtype=torch.bool, device=norm.device)
    for value in values:
        here = bound.to(value.device)
        least, most = value.aminmax()
        beyond |= ((most > here) | (least < -here)).to(norm.device)
        here = here.to(value.dtype)  # or clamp would give a tensor of the wider format
        torch.clamp(value, -here, here, out=value)
    return Clipped(norm=unscaled, beyond=beyond)


def _values(parameters: Iterable[Tensor]) -> list[Tensor]:
    """What is stored of the gradients of parameters; a sparse one is coalesced on the parameter itself."""
    values: list[Tensor] = []
    for parameter in parameters:  # hundreds of them each step: one loop, and nothing called from it that need not be
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            if not gradient.is_coalesced():
                parameter.grad = gradient = coalesced(gradient)
            gradient = gradient._values()  # noqa: SLF001  `values()` may not be changed in place
        if gradient.numel():
            values.append(gradient)
    return values


def _norm(groups: list[list[Tensor]]) -> Tensor:
    """2-norm of all tensors together, in float32, or in float64 where one of them is."""
    wide = (
        torch.float64 if any(torch.float64 in {value.dtype for value in group} for group in groups) else torch.float32
    )
    norms: list[Tensor] = []
    for group in groups:
        norms += torch._foreach_norm(group, 2, dtype=wide)  # noqa: SLF001  as torch's own clipping does
    if len(groups) > 1:
        norms = [norm.to(groups[0][0].device) for norm in norms]
    together: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together


def _stays(norm: Tensor, max_norm: float) -> bool:
    """Whether the factor is known to be 1 without waiting: on a CPU, where the norm lies in the host's memory."""
    if not norm.is_cpu or type(norm) is not Tensor:
        return False
    kind = ctypes.c_double if norm.dtype is torch.float64 else ctypes.c_float
    value = kind.from_address(norm.data_ptr()).value
    # So near to the bound that rounding decides, the formula does.
    return not math.isfinite(value) or value + _EPSILON < max_norm * (1 - 1e-6)


def _by_device(values: list[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.device, list[Tensor]] = {}
    for value in values:
        groups.setdefault(value.device, []).append(value)
    return list(groups.values())
