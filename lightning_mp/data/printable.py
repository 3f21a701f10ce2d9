"""A name from a file, as text for a message."""

from __future__ import annotations


def printable(name: str) -> str:
    r"""A column's name as text that cannot disturb a terminal: unprintable signs escaped, at most 60 letters.

    Example:
        >>> printable("na\nme")
        'na\\nme'
    """
    clean = name if name.isprintable() else name.encode("unicode_escape").decode("ascii")
    return clean if len(clean) <= 60 else f"{clean[:59]}…"
