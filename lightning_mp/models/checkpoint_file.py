"""Whether a checkpoint file is one, and whether its bytes are those that were written."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import torch

from lightning_mp.errors import ArtifactError

_ANOTHER = "take another checkpoint of the run, or train again"


def require_sound(path: str | Path) -> None:
    """Refuse a file that is no Lightning checkpoint, or whose bytes were altered since it was written.

    torch writes a checksum beside every tensor and does not compare it when it loads: of single flipped bits, more
    than half load without a word and with other weights. Here they are compared, which takes less time than loading.

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
    file = Path(path)
    if not file.is_file():
        raise ArtifactError(f"there is no checkpoint `{file}`", "check the path")
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except PermissionError as error:
        raise ArtifactError(f"checkpoint `{file}` may not be read: no permission", "change its mode") from error
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        problem = f"`{file}` is no checkpoint, or was cut short or altered: {error}"
        raise ArtifactError(problem, _ANOTHER) from error
    if damaged is not None:
        raise ArtifactError(f"checkpoint `{file}` is damaged: `{damaged}` fails its checksum", _ANOTHER)
    try:
        content = torch.load(file, map_location="meta", weights_only=True, mmap=True)
    except Exception:
        return
    if not isinstance(content, dict) or "state_dict" not in content or "pytorch-lightning_version" not in content:
        raise ArtifactError(f"`{file}` is no checkpoint of a Lightning Trainer", "give the `.ckpt` file of a fit")
