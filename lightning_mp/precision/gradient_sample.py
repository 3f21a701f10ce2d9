"""A sample of every gradient of one backward pass, and the histogram of its exponents."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lightning_mp.float_formats import FLOAT16, FLOAT32
from lightning_mp.precision.representability import MEANINGFUL_VALUES

_MOST_TOGETHER, _FEWEST = 2**17, 256
_BINS = 256  # one for each biased exponent of float32; the first holds zeros, the last what is not finite
_FIRST_NORMAL = FLOAT32.largest_exponent - (FLOAT16.largest_exponent - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentHistogram:
    """Counts of the exponents of sampled gradients, as they were in the backward pass, multiplied by the loss scale.

    Args:
        counts: By name of the parameter, 256 counts: of zeros, of float32's biased exponents 1 to 254, of values that
            are not finite.
        from_float16: Names of the parameters whose gradient came out of float16, told from its values.
        largest: Largest magnitude by name of the parameter, of all its values.
    """

    counts: dict[str, list[int]]
    from_float16: frozenset[str]
    largest: dict[str, float]

    @property
    def subnormal_fraction(self) -> float | None:
        """Share of the sampled values other than zero that are float16 subnormals and so have lost bits.

        Only gradients that came out of float16 count: in one computed in float32, such as a table's, small values are
        harmless. None if there is no value to count.
        """
        counts = [self.counts[name] for name in self.from_float16]
        subnormal = sum(sum(row[1:_FIRST_NORMAL]) for row in counts)
        values = sum(sum(row[1:-1]) for row in counts)
        return subnormal / values if values else None

    @property
    def headroom_bits(self) -> float | None:
        """Times the loss scale could be doubled before the largest of these gradients overflows float16.

        None if no gradient came out of float16, or one is not finite. Gradients inside the network may be larger.
        """
        magnitudes = [self.largest[name] for name in self.from_float16]
        finite = all(map(math.isfinite, magnitudes))
        return math.log2(FLOAT16.largest / max(magnitudes)) if finite and any(magnitudes) else None


class GradientSample:
    """A sample of each gradient of a backward pass, taken before it is accumulated or averaged.

    A parameter that has no gradient yet has that of the pass when it ends; any other needs a hook, and all do where
    several processes average their gradients in the pass.

    Args:
        parameters: Parameters by name.
        samples: Most values taken from one gradient, spread evenly; fewer where there are many, 2**17 together.

    Example:
        >>> layer = torch.nn.Linear(3, 2)
        >>> sample = GradientSample(dict(layer.named_parameters()), samples=4096)
        >>> sample.attach()
        >>> layer(torch.full((1, 3), 2.0**-20)).sum().backward()
        >>> sample.detach()
        >>> histogram = sample.histogram()
        >>> histogram.largest["bias"], histogram.counts["weight"][127 - 20]
        (1.0, 6)
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, samples: int) -> None:
        self._parameters = dict(parameters)
        self._samples = min(samples, max(_FEWEST, _MOST_TOGETHER // max(1, len(self._parameters))))
        self._handles: list[RemovableHandle] = []
        self._fresh: list[tuple[str, Tensor]] = []
        self._taken: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._sizes: list[int] = []
        self._bins = torch.empty(0, dtype=torch.int32)

    def attach(self) -> None:
        """Call after the forward pass; what is frozen in this pass has no gradient."""
        alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                continue
            # One whose optimizer steps within the pass has lost it by then.
            if alone and parameter.grad is None and not getattr(parameter, "_post_accumulate_grad_hooks", None):
                self._fresh.append((name, parameter))
            else:
                hook = functools.partial(self._take, name)
                self._handles.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def detach(self) -> None:
        """Call when the pass is over: takes the hooks off; the samples stay."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for name, parameter in self._fresh:
            if parameter.grad is not None:
                self._take(name, parameter.grad)
        self._fresh.clear()

    def histogram(self) -> ExponentHistogram | None:
        """Count what was sampled, by one read from the device, and forget it; None if there was no gradient."""
        taken, self._taken = self._taken, {}
        if not taken:
            return None
        samples, least, most = zip(*taken.values(), strict=True)
        device = samples[0].device
        values = torch.cat([sample.to(device) for sample in samples])
        bins = (values.view(torch.int32) >> FLOAT32.fraction_bits) & (_BINS - 1)
        bins += (values != values.half().float()).int().mul_(_BINS)  # what float16 cannot hold is counted apart
        bins += self._first_bins([sample.numel() for sample in samples], device)
        counts = torch.bincount(bins, minlength=len(taken) * 2 * _BINS)
        largest = torch.maximum(torch.stack(list(most)), -torch.stack(list(least))).to(device)
        flat = torch.cat([counts.double(), largest.double()]).cpu()
        table = flat[: -len(taken)].long().view(len(taken), 2, _BINS)
        differs = table[:, 1, :-1].sum(1).tolist()
        told = (table[:, :, 1:-1].sum((1, 2)) >= MEANINGFUL_VALUES).tolist()
        return ExponentHistogram(
            counts=dict(zip(taken, table.sum(1).tolist(), strict=True)),
            from_float16=frozenset(
                name for name, enough, other in zip(taken, told, differs, strict=True) if enough and not other
            ),
            largest=dict(zip(taken, flat[-len(taken) :].tolist(), strict=True)),
        )

    def _first_bins(self, sizes: list[int], device: torch.device) -> Tensor:
        if self._sizes != sizes or self._bins.device != device:
            starts = torch.arange(len(sizes), dtype=torch.int32) * 2 * _BINS
            self._sizes, self._bins = sizes, torch.repeat_interleave(starts, torch.tensor(sizes)).to(device)
        return self._bins

    def _take(self, name: str, gradient: Tensor) -> None:
        values = gradient.detach() if gradient.requires_grad else gradient
        if values.is_sparse:
            values = values._values()  # noqa: SLF001 - `values()` wants it coalesced
        if values.numel() and name not in self._taken:  # a shared weight's gradient arrives as one sum
            least, most = torch.aminmax(_in_memory_order(values))
            self._taken[name] = (spread(values, self._samples), least.float(), most.float())


def spread(values: Tensor, samples: int) -> Tensor:
    """Values from all over a tensor, as a copy in float32.

    Args:
        values: Any shape and floating type.
        samples: Most values taken.

    Returns:
        (at most `samples`,) float32. No row or column is preferred: the step shares no factor with the last axis.

    Example:
        >>> spread(torch.arange(12.0).view(3, 4), 5)
        tensor([ 0.,  5., 10.])
    """
    flat = _in_memory_order(values)
    size = flat.numel()
    step = max(1, -(-size // samples))
    if step > 1:
        across = math.prod(values.shape[-2:])
        while math.gcd(step, across) > 1:
            step += 1
    taken = flat.as_strided((-(-size // step),), (step * flat.stride(0),))
    return taken.float() if taken.dtype is not torch.float32 else taken.clone()


def _in_memory_order(values: Tensor) -> Tensor:
    """A tensor as one row, without a copy of it where its values lie together, be it transposed."""
    if values.is_contiguous():
        return values.view(-1)
    if values.dim() >= 2 and (turned := values.mT).is_contiguous():
        return turned.reshape(-1)
    return values.reshape(-1)
