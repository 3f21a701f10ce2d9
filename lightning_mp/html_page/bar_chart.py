"""Named bars with their values, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from lightning_mp.html_page.drawing import SERIES, Drawing
from lightning_mp.html_page.visible_text import visible


def bar_chart(bars: Sequence[tuple[str, float]], *, title: str, width: int = 480) -> Markup:
    """An SVG chart of named bars, one below the other, each with its value.

    Args:
        bars: Name and value; a value that is not finite is written and not drawn.
        title: Read out by screen readers, and drawn above.
        width: Of the drawing, in its own units; a page fits it to the screen.
    """
    finite = [value for _, value in bars if math.isfinite(value)]
    low, high = min(0.0, *finite, 0.0), max(0.0, *finite, 0.0)
    left, right = round(width * 0.36), width - 76
    unit = (right - left) / ((high - low) or 1.0)
    drawing = Drawing(width, 44 + 24 * len(bars), title=title)
    for index, (name, value) in enumerate(bars):
        y, drawn = 36 + 24 * index, value if math.isfinite(value) else 0.0
        x, length = round(left + (min(drawn, 0.0) - low) * unit, 1), round(abs(drawn) * unit, 1)
        form = '<rect x="{}" y="{}" width="{}" height="16" fill="{}"><title>{}: {:,g}</title></rect>'
        drawing.add(form, x, y, length, SERIES[0], visible(name), value)
        shown = visible(name)
        drawing.text(left - 8, y + 12, shown if len(shown) <= 24 else f"{shown[:23]}…", anchor="end")
        drawing.text(x + length + 6, y + 12, f"{value:,.4g}", anchor="start")
    return drawing.svg()
