"""Something to know and what to do about it, set off from the text."""

from __future__ import annotations

from typing import Literal

from markupsafe import Markup

from lightning_mp.html_page.prose import prose
from lightning_mp.html_page.visible_text import visible


def notice(
    title: str, text: str, *, cure: str = "", source: str = "", severity: Literal["error", "warning", "note"] = "note"
) -> Markup:
    """A block with a coloured edge.

    Args:
        title: In bold.
        text: What there is to know; names between backticks are shown as code, here and in the cure.
        cure: What to do; left out where empty.
        source: Where more is to be read, in small; left out where empty.
        severity: Colour of the edge, and a word for those who don't see it.

    Example:
        >>> "<b>cure:</b> drop it" in notice("MP001", "too large", cure="drop it", severity="error")
        True
    """
    parts = [
        Markup("<p><strong>{}</strong><small>{}</small></p>").format(visible(title), severity),
        Markup("<p>{}</p>").format(prose(text)),
        Markup("<p><b>cure:</b> {}</p>").format(prose(cure)) if cure else "",
        Markup("<p><small>{}</small></p>").format(visible(source)) if source else "",
    ]
    return Markup('<div class="notice {}">{}</div>').format(severity, Markup("").join(parts))
