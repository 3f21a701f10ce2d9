"""Measure what a backward pass in float16 loses, by running it at two loss scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from lightning_mp.precision.loss_graph import LossGraph
from lightning_mp.precision.underflow_report import ParameterLoss, UnderflowReport

# Bits the second scale lies above the first, from the best reference to the last resort. A scale next to its ceiling
# cannot rise; then the pass itself is the reference, for a quarter of its scale: it loses less than that.
_BELOW = -2
_DOUBTFUL = 0.5
_FAILED = 2.0
_MOST_BITS = 32


class TwoScaleProbe:
    """One more backward pass on the graph of a loss, at a larger scale, and hooks that compare the real one with it.

    The same graph means the same activations, dropout included. What a larger loss scale brings back is what the pass
    at the smaller one lost. No `.grad` is touched. Gradients are kept from the one pass to the other, those of dense
    embedding tables as the rows that were looked up.

    Args:
        parameters: Parameters by name.
        bits: The larger scale is 2**bits times the other; where it overflows, half and a quarter of the bits are tried.
        memory: Most bytes of gradients to keep. Of parameters beyond, another part is taken each time.

    Attributes:
        bits: Bits of the last pass, negative if the scale could not rise.
        overflowed_at: Fewest bits at which the last pass overflowed, if it did.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, bits: int, memory: int) -> None:
        self._parameters = dict(parameters)
        self._fewest = self._wanted = self.bits = bits
        self._memory = memory
        self.overflowed_at: int | None = None
        self._turn = 0
        self._handles: list[RemovableHandle] = []
        self._kept: list[Tensor] = []
        self._measured: list[tuple[str, int, Tensor]] = []

    def start(self, loss: Tensor, graph: LossGraph, *, highest: Callable[[Tensor], float]) -> None:
        """Run the other pass; call right before the real one.

        Args:
            loss: What `backward` will be called on, multiplied by the loss scale.
            graph: Its graph.
            highest: Reads a () float32 from the device: the largest among all processes. All ask equally often,
                whatever each of them found.

        Raises:
            RuntimeError: The pass failed, here or in another process.
        """
        named, sources = self._chosen(loss, graph)
        kept: list[Tensor | None] = []
        failure: RuntimeError | None = None
        with ExitStack() as stack:
            if torch.is_anomaly_enabled():  # an overflow here is an answer, not an error
                stack.enter_context(torch.autograd.set_detect_anomaly(False))
            self.overflowed_at = None
            for bits in [*dict.fromkeys(max(1, self._wanted >> shift) for shift in range(3)), _BELOW]:
                self.bits, kept = bits, []
                try:
                    kept = _gradients(loss, sources, bits)
                    flags = [gradient.isfinite().all().to(loss.device) for gradient in kept if gradient is not None]
                    state = (~torch.stack(flags).all()).float() if flags else torch.zeros((), device=loss.device)
                except RuntimeError as error:
                    failure, state = error, torch.full((), _FAILED, device=loss.device)
                found = highest(state)  # asked with nothing to say too: the other processes wait for it
                if found == _FAILED:
                    raise failure or RuntimeError("it failed in another process")
                if not found:
                    break
                self.overflowed_at = bits if bits > 0 else self.overflowed_at
        for name, source, gradient in zip(named, sources, kept, strict=True):
            if gradient is not None:
                self._kept.append(gradient)
                self._handles.append(self._compare(name, source, gradient))

    def finish(self) -> list[ParameterLoss]:
        """What was lost, by parameter, by one read from the device; forgets the gradients."""
        self.release()
        measured, self._measured = self._measured, []
        if not measured:
            return []
        device = measured[0][2].device
        numbers = torch.stack([numbers.to(device) for _, _, numbers in measured]).tolist()
        return [
            ParameterLoss(
                name=name, size=size, true_norm=true, lost_norm=lost, values=int(values), flushed=int(flushed)
            )
            for (name, size, _), (true, lost, values, flushed) in zip(measured, numbers, strict=True)
        ]

    def doubtful(self, report: UnderflowReport) -> bool:
        """Whether so much was lost that the reference is in doubt too."""
        return any(layer.lost_norm > _DOUBTFUL for layer in report.layers) and self.overflowed_at is None

    def takes_more_bits(self, *, doubtful: bool) -> bool:
        """Whether the next pass takes twice the bits, as the last one was doubtful, in any process."""
        more = doubtful and self.bits == self._wanted and self._wanted < _MOST_BITS
        self._wanted = self._wanted * 2 if more else self._wanted if doubtful else self._fewest
        return more

    def release(self) -> None:
        """Take the hooks off and drop the gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._kept.clear()

    def _compare(self, name: str, source: Tensor | Node, other: Tensor) -> RemovableHandle:
        def compare(gradient: Tensor | tuple[Tensor | None, ...]) -> None:
            given = gradient if isinstance(gradient, Tensor) else gradient[0]
            if given is not None:
                self._measure(name, _values(source, given), other)

        register: Any = source.register_hook if isinstance(source, Tensor) else source.register_prehook
        handle: RemovableHandle = register(compare)
        return handle

    def _measure(self, name: str, own: Tensor, other: Tensor) -> None:
        device = own.device.type
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            rescaled = other * 2.0**-self.bits
            true, lossy = (rescaled, own) if self.bits > 0 else (own, rescaled)
            there = torch.count_nonzero(true)
            kept = torch.count_nonzero(torch.logical_and(true, lossy))
            norms = torch._foreach_norm([true, true - lossy])  # noqa: SLF001 - as torch's own clipping does
            numbers = [*norms, there.float(), (there - kept).float()]
        self._measured.append((name, own.numel(), torch.stack(numbers)))

    def _chosen(self, loss: Tensor, graph: LossGraph) -> tuple[list[str], list[Tensor | Node]]:
        """Parameters whose turn it is, within the memory; a large table stands for the rows it was asked for."""
        named: list[str] = []
        sources: list[Tensor | Node] = []
        memory = left = _room(self._memory, loss.device)
        reached = [
            (name, value)
            for name, value in self._parameters.items()
            if value.requires_grad and id(value) in graph.parameters
        ]
        for offset in range(len(reached)):
            name, parameter = reached[(self._turn + offset) % len(reached)]
            parts: list[Tensor | Node] = [*graph.lookups.get(id(parameter), [])] or [parameter]
            bytes_ = sum(4 * _size(part, parameter) for part in parts)
            if bytes_ > memory:
                continue
            if bytes_ > left:
                self._turn += offset
                break
            left -= bytes_
            named += [name] * len(parts)
            sources += parts
        return named, sources


def _gradients(loss: Tensor, sources: list[Tensor | Node], bits: int) -> list[Tensor | None]:
    if not sources:
        return []
    edges: Any = [source if isinstance(source, Tensor) else GradientEdge(source, 0) for source in sources]
    scale = torch.full_like(loss, 2.0**bits)
    gradients = torch.autograd.grad(loss, edges, grad_outputs=scale, retain_graph=True, allow_unused=True)
    return [
        None if gradient is None else _values(source, gradient)
        for source, gradient in zip(sources, gradients, strict=True)
    ]


def _values(source: Tensor | Node, gradient: Tensor) -> Tensor:
    """The gradient of a parameter as a dense tensor; of a lookup, the sum of each row that was asked for."""
    if isinstance(source, Tensor):
        values = gradient.coalesce().values() if gradient.is_sparse else gradient.detach()
        return values.float() if values.dtype is not torch.float32 else values
    indices = source._saved_indices.reshape(-1)  # type: ignore[attr-defined]  # noqa: SLF001 - autograd tells it nowhere else
    rows, inverse = torch.unique(indices, return_inverse=True)
    width = gradient.shape[-1]
    sums = torch.zeros(len(rows), width, device=gradient.device)
    sums.index_add_(0, inverse, gradient.detach().reshape(-1, width).float())
    padding = source._saved_padding_idx  # type: ignore[attr-defined]  # noqa: SLF001 - autograd tells it nowhere else
    sums[rows == padding] = 0  # the table's own gradient leaves that row out
    return sums


def _size(source: Tensor | Node, parameter: Tensor) -> int:
    if isinstance(source, Tensor):
        return source.numel()
    return int(source._saved_indices.numel()) * parameter.shape[-1]  # type: ignore[attr-defined]  # noqa: SLF001 - autograd tells it nowhere else


def _room(memory: int, device: torch.device) -> int:
    """Bytes to keep: on a GPU at most half of what lies between now and the peak so far, which then stays the peak."""
    if device.type != "cuda":
        return memory
    return min(memory, (torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)) // 2)
