"""Names of the columns of logits of several tasks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def told_tasks(module: nn.Module) -> tuple[str, ...]:
    """The names that a module, or its `network`, tells as its `tasks`; none where it tells nothing."""
    for part in (module, getattr(module, "network", None)):
        told = getattr(part, "tasks", None)
        if isinstance(told, Sequence) and not isinstance(told, str) and told:
            return tuple(str(name) for name in told)
    return ()


def task_names(module: nn.Module, width: int, labels: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the columns of logits (B, T).

    Args:
        module: Its `tasks`, else those of its `network`, are taken where they are T names.
        width: T.
        labels: Names of the labels, the second choice where they are T.

    Returns:
        T names; `task_0` and so on where nobody told any.

    Example:
        >>> task_names(nn.Linear(1, 2), 2, ("click", "order"))
        ('click', 'order')
    """
    for names in (told_tasks(module), tuple(labels)):
        if len(names) == width:
            return names
    return tuple(f"task_{column}" for column in range(width))
