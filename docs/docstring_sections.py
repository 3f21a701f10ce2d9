"""For the API pages: what griffe makes of the sections that our docstrings have beside Google's own."""

from __future__ import annotations

import re
from typing import Any

import griffe


class DocstringSections(griffe.Extension):
    """Reads `Example:` as `Examples:`, which it would set as running text, and makes a list of `Logs:`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object, once it has its docstring."""
        if obj.docstring:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^Logs:\n(?:    .*\n?)+", _as_list, text, flags=re.MULTILINE)


def _as_list(section: re.Match[str]) -> str:
    return re.sub(r"^    (?=`)", "    - ", section[0], flags=re.MULTILINE)
