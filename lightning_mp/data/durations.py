"""Lengths of time as text: `90s`, `30min`, `12h`, `7d`."""

from __future__ import annotations

import re
from typing import Final

from lightning_mp.errors import ConfigurationError

_MICROSECONDS: Final = {"s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def duration_us(text: str, *, name: str) -> int:
    """Microseconds of a length of time.

    Args:
        text: A whole number and a unit: `s`, `min`, `h` or `d` (24 hours).
        name: Of the setting, for the error.

    Raises:
        ConfigurationError: It is written in another way.

    Example:
        >>> duration_us("2h", name="within")
        7200000000
    """
    match = re.fullmatch(r"\s*(\d+)\s*(s|min|h|d)\s*", text)
    if match is None:
        problem = f"`{name}` must be a whole number and s, min, h or d, got {text!r}"
        raise ConfigurationError(problem, "write it as 12h or 7d")
    return int(match[1]) * _MICROSECONDS[match[2]]
