"""Any module that takes a batch, as one that answers logits for named inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_mp.errors import ConfigurationError
from lightning_mp.export.task_names import told_tasks

Gives = Literal["logit", "score"]
Output = str | int | Sequence[str | int]
_NEAREST_ONE = 1.0 - 2.0**-24


class BatchModule(nn.Module):
    """A module of any project as `forward(batch) -> logits`, (B,) or (B, T) float32.

    Args:
        module: `forward` takes one mapping of tensors, or the tensors by name, or by position in the order of `names`.
        names: Inputs that it takes.
        gives: What it answers: `"logit"`, or `"score"`: a probability.
        output: Key or position of the answer, where `forward` answers a mapping or a sequence; several of them make one
            column each, and are the names of the tasks.

    Example:
        >>> class Tower(nn.Module):
        ...     def forward(self, user, item):
        ...         return (user * item).sum(dim=1, keepdim=True)
        >>> BatchModule(Tower(), ("item", "user"))({"item": torch.ones(2, 3), "user": torch.ones(2, 3)})
        tensor([3., 3.])
    """

    def __init__(self, module: nn.Module, names: Sequence[str], *, gives: Gives = "logit", output: Output = 0) -> None:
        super().__init__()
        self.module = module
        self.gives = gives
        self.output = output
        self.call = _way_of_calling(module, names)
        self.names = tuple(names)
        several = output if isinstance(output, list | tuple) else ()
        self.tasks = tuple(str(name) for name in several) or told_tasks(module)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of a batch."""
        answer = self._answer(batch)
        if isinstance(self.output, list | tuple):
            columns = [self._number(answer, name) for name in self.output]
            number = torch.stack([column.reshape(len(column)) for column in columns], dim=1)
        else:
            number = self._number(answer, self.output)  # type: ignore[arg-type]  # no list: a key or a position
            number = number.squeeze(-1) if number.dim() == 2 and number.shape[1] == 1 else number
        # The largest float32 below 1, so that a score of 1 has a logit.
        return number if self.gives == "logit" else torch.logit(number.clamp(2.0**-24, _NEAREST_ONE))

    def _answer(self, batch: Mapping[str, Tensor]) -> Any:
        if self.call == "batch":
            return self.module({name: batch[name] for name in self.names})
        if self.call == "names":
            return self.module(**{name: batch[name] for name in self.names})
        return self.module(*(batch[name] for name in self.names))

    def _number(self, answer: Any, output: str | int) -> Tensor:
        if isinstance(answer, Mapping):
            answer = self._part(answer, list(answer), output)
        elif isinstance(answer, tuple | list):
            answer = self._part(answer, list(range(len(answer))), output)
        if not isinstance(answer, Tensor):
            raise ConfigurationError(
                f"`{type(self.module).__name__}.forward` answers {type(answer).__name__}, not a tensor",
                "name the part that is the logit: `output=`",
            )
        return answer.float()

    def _part(self, answer: Any, there: list[Any], output: str | int) -> Any:
        if output not in there and isinstance(answer, Mapping) and len(there) == 1:
            return answer[there[0]]
        if output not in there:
            listed = ", ".join(repr(key) for key in there)
            raise ConfigurationError(
                f"`{type(self.module).__name__}.forward` answers {listed}, and there is no {output!r}",
                "name the part that is the logit: `output=`",
            )
        return answer[output]


def _way_of_calling(module: nn.Module, names: Sequence[str]) -> Literal["batch", "names", "position"]:
    """By name where `forward` has parameters of these names, one mapping where it takes one, else by position."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if set(names) <= taken:
        return "names"
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return "batch" if len(needed) <= 1 else "position"
