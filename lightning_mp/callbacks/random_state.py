"""State of the random generators as tensors and lists, which `weights_only=True` loads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """State of Python's, NumPy's and torch's generators, those of all CUDA devices included."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 -- what user code draws from
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` gave.

    Args:
        state: Devices that it knows and this machine lacks are left out, and the other way round.

    Example:
        >>> state = random_state()
        >>> first = random.random(), torch.rand(1)
        >>> set_random_state(state)
        >>> first == (random.random(), torch.rand(1))
        True
    """
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    # The global generator on purpose: it is what user code draws from.
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002 - the state that user code draws from
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available():
        for device, cuda in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(cuda.cpu(), device)
