"""Arrays that a large log is worked on in: beyond a size they lie on disk, mapped, and the machine may put them out."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_mp.data.no_room import no_room

IN_MEMORY: Final = 1 << 23
"""Bytes up to which an array is an ordinary one."""


def scratch_array(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array whose values are not set yet.

    A large one lies in a nameless temporary file: what was written to it leaves memory when that gets short, and the
    file is gone with the array, whatever ends the process.

    Args:
        shape: As for `numpy.empty`.
        dtype: As for `numpy.empty`.

    Raises:
        ArtifactError: The disk of the temporary folder is full, or there is no such folder.
    """
    kind = np.dtype(dtype)
    size = math.prod((shape,) if isinstance(shape, int) else shape) * kind.itemsize
    if size <= IN_MEMORY:
        return np.empty(shape, dtype=kind)
    try:
        with tempfile.TemporaryFile(prefix="lightning-mp-") as file:
            if hasattr(os, "posix_fallocate"):
                # A page without its place on the disk would end the process when it is written to.
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise no_room(error, f"{size / 1e6:,.0f} MB of a log's columns") from error
    return np.frombuffer(mapped, dtype=kind).reshape(shape)
