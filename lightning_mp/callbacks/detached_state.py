"""What of a callback may be pickled or copied: not what ties it to a running Trainer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

# Lightning sets these two on every callback when a run starts; they are methods of the LightningModule, and a
# copy of the callback would copy the whole module and its Trainer with them.
_SET_BY_LIGHTNING = ("log", "log_dict")


def detached_state(attributes: dict[str, Any], run: Collection[str] = ()) -> dict[str, Any]:
    """Attributes of a callback as `__getstate__` should give them.

    Args:
        attributes: The callback's `__dict__`.
        run: Names of attributes that belong to the run that goes on; they become None in the copy.

    Returns:
        A new dictionary.

    Example:
        >>> detached_state({"min_scale": 1.0, "log": print, "_run": object()}, run=["_run"])
        {'min_scale': 1.0, '_run': None}
    """
    return {name: None if name in run else value for name, value in attributes.items() if name not in _SET_BY_LIGHTNING}
