"""Amounts of memory as text: `400MB`, `2GiB`."""

from __future__ import annotations

import re
from typing import Final

from lightning_mp.errors import ConfigurationError

_BYTES: Final = {"KB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LEAST: Final = 1 << 26


def byte_size(text: str, *, name: str, least: int = _LEAST) -> int:
    """Bytes of an amount of memory.

    Args:
        text: A whole number and a unit: `KB`, `MB`, `GB` (powers of 1000), `KiB`, `MiB` or `GiB` (of 1024).
        name: Of the setting, for the error.
        least: Bytes that are needed.

    Raises:
        ConfigurationError: It is written in another way, or is less than is needed.

    Example:
        >>> byte_size("400MB", name="memory_limit")
        400000000
    """
    match = re.fullmatch(r"\s*(\d+)\s*([KMG]i?B)\s*", str(text))
    if match is None:
        problem = f"`{name}` must be a whole number and KB, MB, GB, KiB, MiB or GiB, got {text!r}"
        raise ConfigurationError(problem, "write it as 400MB or 2GB")
    size = int(match[1]) * _BYTES[match[2]]
    if size < least:
        raise ConfigurationError(
            f"`{name}` must be at least {least >> 20}MiB, got {text!r}", "write it as 400MB or 2GB"
        )
    return size
