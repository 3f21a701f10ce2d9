"""A sentence with names in it."""

from __future__ import annotations

from markupsafe import Markup

from lightning_mp.html_page.visible_text import visible


def prose(text: str) -> Markup:
    """Text, escaped, with what stands between backticks as code.

    Args:
        text: Plain text; a backtick without a partner stays one.

    Example:
        >>> prose("add `NormGuard` & go on")
        Markup('add <code>NormGuard</code> &amp; go on')
    """
    parts = visible(text).split("`") if text else [""]
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if place % 2 else part for place, part in enumerate(parts))
