"""A table of shares as coloured cells, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from lightning_mp.errors import ConfigurationError
from lightning_mp.html_page.drawing import SERIES, Drawing
from lightning_mp.html_page.visible_text import visible

_ROW = 22


def heat_map(
    rows: Sequence[tuple[str, Sequence[float | None]]],
    columns: Sequence[str],
    *,
    title: str,
    x_label: str,
    smallest: float = 1e-4,
    width: int = 480,
) -> Markup:
    """An SVG heat map of shares: the darker a cell, the larger its share, on a logarithmic scale.

    Args:
        rows: Name, and one share in [0, 1] a column; `None`, or what is not finite, leaves a cell empty.
        columns: Names of the columns; where they are many, only some are written.
        title: Read out by screen readers, and drawn above.
        x_label: What the columns are.
        smallest: Share that is drawn palest, as all smaller ones are; below 1.
        width: Of the drawing, in its own units; a page fits it to the screen.

    Returns:
        The `<svg>` element; the same input gives the same text.

    Raises:
        ConfigurationError: There is no cell, or a row has not one share a column.
    """
    if not rows or not columns or any(len(shares) != len(columns) for _, shares in rows):
        problem = f"heat map `{title}` has {len(rows)} rows and {len(columns)} columns, or a row of another length"
        raise ConfigurationError(problem, "give each row one share a column, and leave a map of nothing out")
    left, top, legend = round(width * 0.27), 58, 5
    cell = (width - left - 12) / len(columns)
    drawing = Drawing(width, top + _ROW * len(rows) + 44, title=title)
    for step in range(legend):
        share = smallest ** (step / (legend - 1))
        begin = left + step * 68
        drawing.add(_CELL, begin, 32, 16, 16, SERIES[1], _opacity(share, smallest), "legend")
        drawing.text(begin + 20, 44, _percent(share), anchor="start")
    for index, (name, shares) in enumerate(rows):
        y, shown = top + _ROW * index, visible(name)
        drawing.text(left - 8, y + 15, shown if len(shown) <= 18 else f"…{shown[-17:]}", anchor="end")
        for place, (column, share) in enumerate(zip(columns, shares, strict=True)):
            if share is None or not math.isfinite(share):
                continue
            x, tip = round(left + place * cell, 1), f"{shown}, {visible(column)}: {_percent(share)}"
            drawing.add(_CELL, x, y, round(max(cell - 1, 1), 1), _ROW - 1, SERIES[1], _opacity(share, smallest), tip)
            if cell >= 44:
                drawing.text(round(x + cell / 2, 1), y + 15, _percent(share), size=11, fill="var(--text, #212529)")
    skip = max(1, math.ceil(44 / cell))
    for place, column in enumerate(columns):
        if place % skip == 0:
            drawing.text(round(left + (place + 0.5) * cell, 1), top + _ROW * len(rows) + 16, column, size=11)
    drawing.text((left + width) / 2, top + _ROW * len(rows) + 36, x_label)
    return drawing.svg()


_CELL = '<rect x="{}" y="{}" width="{}" height="{}" fill="{}" fill-opacity="{}"><title>{}</title></rect>'


def _opacity(share: float, smallest: float) -> float:
    if share <= smallest:
        return 0.05
    return round(0.05 + 0.9 * (1 - math.log(min(share, 1.0)) / math.log(smallest)), 3)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share >= 1e-6 or share == 0 else f"{share:.0e}"
