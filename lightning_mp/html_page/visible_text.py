"""Show what a text holds, also where nothing would be seen."""

from __future__ import annotations

import unicodedata
from typing import Final

_UNSEEN: Final = frozenset(
    "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff\ufffe\uffff"
)
"""Marks of direction, spaces without width, and what is no character; joiners are left, words need them."""


def visible(text: str) -> str:
    r"""A text with control characters and direction marks written out, and `(empty)` for nothing.

    Two column names that differ in such a character alone look the same on a page, and a direction mark turns the
    text beside it round.

    Example:
        >>> visible("na\nme"), visible("\u202eabc"), visible("")
        ('na\\nme', '\\u202eabc', '(empty)')
    """
    if text.isascii() and text.isprintable():
        return text or "(empty)"
    return "".join(_written(character) for character in text)


def _written(character: str) -> str:
    if character in _UNSEEN or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return character
