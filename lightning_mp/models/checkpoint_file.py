"""Whether a checkpoint file is one, and whether its bytes are those that were written."""

from __future__ import annotations

from pathlib import Path

import torch

from lightning_mp.errors import ArtifactError
from lightning_mp.zip_digest import require_unaltered


def require_sound(path: str | Path) -> None:
    """Refuse a file that is no Lightning checkpoint, or whose bytes were altered since it was written.

    torch writes a checksum beside every tensor and does not compare it when it loads: of single flipped bits, more
    than half load without a word and with other weights. Here they are compared, or the digest that `SafeCheckpointIO`
    wrote, which takes about as long as loading.

    Args:
        path: A checkpoint that Lightning wrote.

    Raises:
        ArtifactError: It is missing, cut short, damaged, or something else.

    Example:
        >>> require_sound("last.ckpt")
        Traceback (most recent call last):
        lightning_mp.errors.ArtifactError: there is no checkpoint `last.ckpt`
        <BLANKLINE>
        hint: check the path

    Source:
        PyTorch issue 126952: the check is off in its zip reader.
    """
    require_unaltered(path)
    file = Path(path)
    try:
        content = torch.load(file, map_location="meta", weights_only=True, mmap=True)
    except Exception:
        return
    if not isinstance(content, dict) or "state_dict" not in content or "pytorch-lightning_version" not in content:
        raise ArtifactError(f"`{file}` is no checkpoint of a Lightning Trainer", "give the `.ckpt` file of a fit")
