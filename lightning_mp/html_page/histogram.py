"""Counts between edges, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from lightning_mp.errors import ConfigurationError
from lightning_mp.html_page.axes import Axes
from lightning_mp.html_page.drawing import SERIES, Drawing
from lightning_mp.html_page.visible_text import visible


def histogram(
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str = "rows",
    bands: Sequence[tuple[str, float, float]] = (),
    width: int = 480,
    height: int = 280,
) -> Markup:
    """An SVG histogram.

    Args:
        edges: Finite and rising, one more than `counts`.
        counts: Finite; each bar tells its own when pointed at.
        title: Read out by screen readers, and drawn above.
        x_label: Name and unit of the horizontal axis.
        y_label: Name and unit of the vertical axis.
        bands: Name, begin and end of ranges drawn behind the bars, such as what float16 can hold.
        width: Of the drawing, in its own units; a page fits it to the screen.
        height: Likewise.

    Raises:
        ConfigurationError: Edges and counts do not belong together, or a number is not finite.
    """
    numbers = [*edges, *counts, *(end for _, *ends in bands for end in ends)]
    rising = all(low < high for low, high in pairwise(edges))
    if len(edges) != len(counts) + 1 or not counts or not rising or not all(map(math.isfinite, numbers)):
        problem = f"histogram `{title}` has {len(edges)} edges and {len(counts)} counts, or not all are finite and rise"
        raise ConfigurationError(problem, "give finite edges in rising order, one more than counts")
    corners = [(edges[0], 0.0), (edges[-1], max(counts) or 1.0), *((x, 0.0) for _, *ends in bands for x in ends)]
    drawing = Drawing(width, height, title=title)
    axes = Axes(drawing, corners, x_label=x_label, y_label=y_label, legend=len(bands))
    for index, (name, begin, end) in enumerate(bands):
        fill, left, right = SERIES[(index + 1) % len(SERIES)], axes.at(begin, 0)[0], axes.at(end, 0)[0]
        form = '<rect x="{}" y="{}" width="{:g}" height="{}" fill="{}" fill-opacity=".18"><title>{}</title></rect>'
        drawing.add(form, left, axes.top, round(right - left, 1), axes.bottom - axes.top, fill, visible(name))
        drawing.text(axes.left, 40 + 16 * index, name, anchor="start", fill=fill)
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        (left, top), (right, floor) = axes.at(low, count), axes.at(high, 0)
        form = '<rect x="{}" y="{}" width="{:g}" height="{:g}" fill="{}"><title>{:g} to {:g}: {:,g}</title></rect>'
        bar = (left, top, max(right - left - 0.5, 0.5), floor - top)
        drawing.add(form, *(round(length, 1) for length in bar), SERIES[0], low, high, count)
    return drawing.svg()
