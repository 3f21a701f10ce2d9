"""Name one of our callbacks in the YAML of a `pytorch_lightning` LightningCLI."""

from __future__ import annotations

import pytorch_lightning
from lightning.pytorch.callbacks import Callback


def for_pytorch_lightning(callback: Callback) -> pytorch_lightning.Callback:
    """Hand a callback of this package to a `pytorch_lightning` LightningCLI.

    The two packages have a class `Callback` each. A `pytorch_lightning.Trainer` takes ours as they are; only its
    LightningCLI compares types, and this function has the type it asks for.

    Args:
        callback: Any callback of this package; in YAML, its `class_path` and `init_args`.

    Returns:
        The same object.

    Example:
        >>> from lightning_mp import LossScaleMonitor
        >>> monitor = LossScaleMonitor()
        >>> for_pytorch_lightning(monitor) is monitor
        True
    """
    return callback  # type: ignore[return-value]  # it is one of theirs by what it does, not by its bases
