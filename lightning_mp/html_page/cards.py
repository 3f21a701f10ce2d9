"""A run's main numbers at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from lightning_mp.html_page.visible_text import visible


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One number with its name.

    Args:
        name: What it is.
        value: As it is shown.
        note: A few words below; left out where empty.
        mood: Colour of the value.
    """

    name: str
    value: str
    note: str = ""
    mood: Literal["", "good", "warning", "error"] = ""


def cards(shown: Sequence[Card]) -> Markup:
    """Cards side by side, as many a line as there is room for.

    Args:
        shown: In order.

    Example:
        >>> "<dd>98</dd>" in cards([Card(name="score", value="98")])
        True
    """
    form, small = Markup('<div class="{}"><dt>{}</dt><dd>{}{}</dd></div>'), Markup("<small>{}</small>")
    parts = [
        form.format(
            card.mood, visible(card.name), visible(card.value), small.format(visible(card.note)) if card.note else ""
        )
        for card in shown
    ]
    return Markup('<dl class="cards">{}</dl>').format(Markup("").join(parts))
