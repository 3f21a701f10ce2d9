"""Lines over numbers, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from lightning_mp.errors import ConfigurationError
from lightning_mp.html_page.axes import Axes
from lightning_mp.html_page.drawing import SERIES, Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart.

    Args:
        name: What it shows; the chart's legend has it.
        points: (x, y) pairs in the order they are joined; a point that is not finite breaks the line.
        marks: (x, y) pairs drawn as small crosses, such as skipped steps.
    """

    name: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[tuple[float, float]] = field(default=())


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log2_y: bool = False,
    width: int = 480,
    height: int = 280,
) -> Markup:
    """An SVG chart of lines over numbers.

    Args:
        lines: At least one, with at least one finite point among them.
        title: Read out by screen readers, and drawn above.
        x_label: Name and unit of the horizontal axis.
        y_label: Name and unit of the vertical axis.
        log2_y: A vertical axis in powers of two, as for a loss scale; values that are not positive are left out.
        width: Of the drawing, in its own units; a page fits it to the screen.
        height: Likewise.

    Returns:
        The `<svg>` element; the same input gives the same text.

    Raises:
        ConfigurationError: There is no finite point.
    """
    lift = math.log2 if log2_y else float

    def fits(x: float, y: float) -> bool:
        return math.isfinite(x) and math.isfinite(y) and (y > 0 or not log2_y)

    points = [(x, lift(y)) for line in lines for x, y in (*line.points, *line.marks) if fits(x, y)]
    if not points:
        hint = "leave the chart out where nothing was measured"
        raise ConfigurationError(f"chart `{title}` has no finite point", hint)
    drawing = Drawing(width, height, title=title)
    axes = Axes(drawing, points, x_label=x_label, y_label=y_label, legend=len(lines), log2_y=log2_y)
    for index, line in enumerate(lines):
        drawn = [axes.at(x, lift(y)) if fits(x, y) else None for x, y in line.points]
        steps = zip([None, *drawn], drawn, strict=False)
        path = "".join(f"{'L' if before else 'M'}{here[0]} {here[1]}" for before, here in steps if here)
        crosses = [axes.at(x, lift(y)) for x, y in line.marks if fits(x, y)]
        path += "".join(f"M{x - 4} {y - 4}l8 8m0 -8l-8 8" for x, y in crosses)
        stroke = SERIES[index % len(SERIES)]
        drawing.add('<path d="{}" fill="none" stroke="{}" stroke-width="2"/>', path, stroke)
        drawing.text(axes.left, 40 + 16 * index, line.name, anchor="start", fill=stroke)
    return drawing.svg()
