"""RowWiseAdagrad: Adagrad with one accumulator a row, for dense and sparse gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_mp.errors import ConfigurationError
from lightning_mp.optim.coalesced import coalesced


class RowWiseAdagrad(Optimizer):
    """Adagrad with one accumulator a row: for embedding tables, whose rows are seen at different rates.

    A row's accumulator grows by the mean square of its gradient, and the row moves by `lr` times its gradient over the
    accumulator's root. A vector or a scalar has an accumulator an element, as in `torch.optim.Adagrad`. So the state of
    a table of width 16 is a 32nd of Adam's, and a sparse gradient costs what its rows cost, whatever the table's size;
    rows that occur twice in it are added first. A row without gradient is left alone, by a dense gradient too.

    Accumulators are float32 at least, also for float16 parameters. It works under a `GradScaler` like any optimizer of
    torch: gradients are unscaled before, and a step with an overflow is not taken. The state is plain tensors.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate, 0 or more. Ten times Adam's is a good start.
        eps: Added to the root, above 0.
        initial_accumulator_value: What accumulators begin with, 0 or more; above 0 it damps a row's first steps.
        weight_decay: Share of the parameter added to its gradient, 0 or more; of a sparse gradient, to its rows only.
        foreach: Whether dense parameters of one device and format are updated together; over 80 small ones that saves
            40 % of a step's time, on a CPU too.

    Raises:
        ConfigurationError: A number is out of range, or (on use) a parameter is complex, or its gradient is sparse in
            more than its rows.

    Example:
        >>> table = torch.nn.Embedding(1000, 16, sparse=True)
        >>> optimizer = RowWiseAdagrad(table.parameters(), lr=0.05)
        >>> table(torch.tensor([3, 7, 3])).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[table.weight]["sum"].shape
        torch.Size([1000, 1])

    Source:
        Duchi et al., Adaptive Subgradient Methods, JMLR 2011; by row: Mudigere et al., Software-Hardware Co-design for
        Fast and Scalable Training of Deep Learning Recommendation Models, ISCA 2022, section 4.1.1.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: float = 1e-2,
        eps: float = 1e-8,
        initial_accumulator_value: float = 0.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool = True,
    ) -> None:
        numbers = {"lr": lr, "initial_accumulator_value": initial_accumulator_value, "weight_decay": weight_decay}
        for name, value in numbers.items():
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"`{name}` must be 0 or more, got {value!r}", "leave it out")
        if not 0 < eps < math.inf:
            raise ConfigurationError(f"`eps` must be above 0, got {eps!r}", "leave it out")
        super().__init__(params, {**numbers, "eps": eps, "foreach": foreach})

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave; accumulators of float16 parameters stay in float32."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(saved, own, strict=True):
            entry = state_dict["state"].get(number)
            if entry is not None:  # torch has cast it to the parameter's format
                total = entry["sum"].detach().clone()
                self.state[parameter]["sum"] = total.to(parameter.device, _wide(parameter))

    @torch.no_grad()
    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: Computes the loss anew and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            dense = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.is_complex():
                    raise ConfigurationError("a parameter is complex", "train its real and imaginary parts")
                state = self.state[parameter]
                if not state:
                    state["sum"] = _first(parameter, group["initial_accumulator_value"])
                if parameter.grad.is_sparse:
                    _sparse_step(parameter, parameter.grad, state["sum"], group)
                else:
                    dense.append((parameter, state["sum"]))
            _dense_steps(dense, group)
        return loss


def _wide(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype is torch.float64 else torch.float32


def _first(parameter: Tensor, value: float) -> Tensor:
    shape = parameter.shape if parameter.dim() < 2 else (len(parameter), *[1] * (parameter.dim() - 1))
    return torch.full(shape, value, dtype=_wide(parameter), device=parameter.device)


def _dense_steps(parameters: list[tuple[Tensor, Tensor]], group: dict[str, Any]) -> None:
    """Parameters with their accumulators; those of one device and format together."""
    kinds: dict[object, list[tuple[Tensor, Tensor]]] = {}
    for parameter, total in parameters:
        kind = (parameter.device, parameter.dtype) if group["foreach"] else id(parameter)
        kinds.setdefault(kind, []).append((parameter, total))
    for alike in kinds.values():
        moved, totals = [parameter for parameter, _ in alike], [total for _, total in alike]
        gradients: list[Any] = [parameter.grad for parameter in moved]
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, moved, alpha=group["weight_decay"]))  # noqa: SLF001  as torch's own
        squares = [_mean_square(gradient, total) for gradient, total in zip(gradients, totals, strict=True)]
        torch._foreach_add_(totals, squares)
        rates = torch._foreach_sqrt(totals)  # noqa: SLF001  as torch's own optimizers
        torch._foreach_add_(rates, group["eps"])
        torch._foreach_reciprocal_(rates)
        torch._foreach_mul_(rates, -group["lr"])
        for parameter, gradient, rate in zip(moved, gradients, rates, strict=True):
            if parameter.dtype is rate.dtype:
                parameter.addcmul_(gradient, rate)
            else:
                parameter.add_(gradient * rate)  # a product of float32, added to a float16 parameter


def _mean_square(gradient: Tensor, total: Tensor) -> Tensor:
    """Mean square of each row in the accumulator's shape and format; of a vector, each square."""
    if gradient.dim() < 2:
        return gradient.to(total.dtype).square()
    rows = gradient.flatten(1)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=total.dtype)
    return norm.square_().div_(max(rows.shape[1], 1)).view_as(total)


def _sparse_step(parameter: Tensor, gradient: Tensor, total: Tensor, group: dict[str, Any]) -> None:
    if gradient.sparse_dim() != 1:
        raise ConfigurationError(
            f"a gradient is sparse in {gradient.sparse_dim()} dimensions, not in its rows alone",
            "let the gradient come from `nn.Embedding(sparse=True)`",
        )
    gradient = coalesced(gradient)
    rows = gradient.indices()[0]
    if not len(rows):
        return
    values = gradient.values().view(len(rows), -1).to(total.dtype)
    table = parameter.view(len(parameter), -1)
    if group["weight_decay"]:
        values = values.add(table.index_select(0, rows), alpha=group["weight_decay"])
    flat = total.view(-1)
    sums = flat.index_select(0, rows).add_(_mean_square(values, flat.new_empty(len(rows))))
    flat.index_copy_(0, rows, sums)
    rate = sums.sqrt_().add_(group["eps"]).reciprocal_().mul_(-group["lr"])
    step = values.mul(rate.unsqueeze(1)).to(table.dtype)
    if table.device.type == "cpu":
        # With an index spread over the columns torch has a kernel for whole rows, twice as fast as `index_add_`.
        table.scatter_add_(0, rows.unsqueeze(1).expand_as(step), step)
    else:
        table.index_add_(0, rows, step)
