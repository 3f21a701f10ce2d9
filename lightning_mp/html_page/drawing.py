"""Drawing: the parts of an SVG element, every inserted text escaped."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup, escape

from lightning_mp.html_page.page import LIGHT
from lightning_mp.html_page.visible_text import visible


def colour(name: str) -> str:
    """A colour that follows the page's, light or dark, and is the light one where an SVG stands alone."""
    return f"var(--{name}, {LIGHT[name]})"


SERIES: Final = tuple(colour(name) for name in LIGHT if name.startswith("series"))
"""Colours of lines and bars, in order."""


class Drawing:
    """An SVG element in the making.

    Args:
        width: In its own units; a page fits it to the screen.
        height: Likewise.
        title: Read out by screen readers, and drawn above.
    """

    def __init__(self, width: int, height: int, *, title: str) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []
        self.add(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
            'font-family="system-ui, sans-serif"><title>{2}</title>',
            width,
            height,
            visible(title),
        )
        self.add('<rect width="{}" height="{}" fill="{}"/>', width, height, colour("page"))
        self.text(width / 2, 20, title, size=15, fill=colour("text"))

    def add(self, form: str, *values: object) -> None:
        """Add an element; `form` is ours, the values are escaped."""
        # `Markup.format` escapes as well, in ten times the time: a picture has hundreds of elements.
        self._parts.append(form.format(*(v if isinstance(v, int | float) else escape(v) for v in values)))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 12,
        anchor: str = "middle",
        fill: str = colour("soft"),
        turned: bool = False,
    ) -> None:
        """Add a text at its anchor."""
        turn = f"rotate(-90 {x:g} {y:g})" if turned else "rotate(0)"
        form = '<text x="{:g}" y="{:g}" font-size="{}" text-anchor="{}" fill="{}" transform="{}">{}</text>'
        self.add(form, x, y, size, anchor, fill, turn, visible(text))

    def svg(self) -> Markup:
        """The whole element."""
        return Markup("".join([*self._parts, "</svg>"]))  # noqa: S704  # `add` escaped all that is not ours
