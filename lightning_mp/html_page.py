"""One page style, escaping and SVG charts: a page stands alone, fetches nothing and reads without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from lightning_mp.errors import ConfigurationError

_COLOURS = ("#3b5bdb", "#e8590c", "#2b8a3e", "#862e9c", "#495057")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #212529; background: #fff }
body { margin: 0 auto; max-width: 60rem; padding: 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
div.wide { overflow-x: auto } svg { max-width: 100%; height: auto }
table { border-collapse: collapse }
th, td { padding: .25rem .75rem; border-bottom: 1px solid #dee2e6; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums }
"""


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


def page(title: str, *, sections: Mapping[str, str]) -> str:
    """A whole HTML page.

    Args:
        title: Plain text; it is escaped.
        sections: Heading, as plain text that is escaped, to HTML that is taken as it is: what `table` and
            `line_chart` give, or text that the caller has escaped.

    Returns:
        The page's text; its style is inline.

    Example:
        >>> "<h1>Scale &amp; skips</h1>" in page("Scale & skips", sections={"Steps": table(["step"], [[1]])})
        True
    """
    body = "\n".join(f"<section><h2>{escape(name)}</h2>\n{html}\n</section>" for name, html in sections.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table; every cell is escaped, numbers stand at the right.

    Args:
        header: Names of the columns.
        rows: Cells, as many a row as `header` has names. `None` leaves a cell empty.

    Returns:
        The table's HTML; where it is wider than the screen it scrolls by itself.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log2_y: bool = False,
    width: int = 720,
    height: int = 300,
) -> str:
    """An SVG chart of lines over numbers.

    Args:
        lines: At least one, with at least one finite point among them.
        title: Read out by screen readers, and drawn above.
        x_label: Name and unit of the horizontal axis.
        y_label: Name and unit of the vertical axis.
        log2_y: A vertical axis in powers of two, as for a loss scale; values that are not positive are left out.
        width: Of the drawing, in its own units; a page shrinks it to the screen.
        height: Likewise.

    Returns:
        The `<svg>` element; the same input gives the same text.

    Raises:
        ConfigurationError: There is no finite point.
    """
    lift = math.log2 if log2_y else float
    shown = [[(x, lift(y)) for x, y in (*line.points, *line.marks) if _fits(x, y, log2_y)] for line in lines]
    points = [point for entry in shown for point in entry]
    if not points:
        raise ConfigurationError(
            f"chart `{title}` has no finite point", "leave the chart out where nothing was measured"
        )
    x_ticks = _ticks(min(p[0] for p in points), max(p[0] for p in points))
    y_ticks = _ticks(min(p[1] for p in points), max(p[1] for p in points), whole=log2_y)
    left, right, top, bottom = 78, width - 16, 40, height - 48

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - left)
        return round(across, 1), round(bottom - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - top), 1)

    parts = [f"<title>{escape(title)}</title>", f'<rect width="{width}" height="{height}" fill="#fff"/>']
    parts.append(_text((left + right) / 2, 20, title, size=15, weight="bold"))
    for tick in y_ticks:
        y = at(x_ticks[0], tick)[1]
        parts.append(f'<path d="M{left} {y}H{right}" stroke="#dee2e6"/>')
        parts.append(_text(left - 8, y + 4, f"{2.0**tick:,g}" if log2_y else f"{tick:,g}", anchor="end"))
    parts += [_text(at(tick, y_ticks[0])[0], bottom + 18, f"{tick:,g}") for tick in x_ticks]
    parts.append(_text((left + right) / 2, height - 8, x_label))
    parts.append(_text(16, (top + bottom) / 2, y_label, turned=True))
    for index, line in enumerate(lines):
        colour = _COLOURS[index % len(_COLOURS)]
        drawn = [at(x, lift(y)) if _fits(x, y, log2_y) else None for x, y in line.points]
        path = "".join(
            f"{'L' if before else 'M'}{here[0]} {here[1]}"
            for before, here in zip([None, *drawn], drawn, strict=False)
            if here
        )
        crosses = [at(x, lift(y)) for x, y in line.marks if _fits(x, y, log2_y)]
        path += "".join(f"M{x - 4} {y - 4}l8 8m0 -8l-8 8" for x, y in crosses)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(right, top + 14 + 18 * index, line.name, anchor="end", colour=colour))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif">{"".join(parts)}</svg>'
    )


def _fits(x: float, y: float, log2_y: bool) -> bool:
    return math.isfinite(x) and math.isfinite(y) and (y > 0 or not log2_y)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Four to nine round numbers, one step apart, from at most `low` to at least `high`."""
    largest = max(abs(low), abs(high), 1e-100)
    if high - low <= 1e-9 * largest:  # one value, as far as six digits tell
        low, high = low - (1 if whole else largest / 2), high + (1 if whole else largest / 2)
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 7)
    step = max(1, round(step)) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (
            f'<td class="number">{value:,g}</td>' if isinstance(value, float) else f'<td class="number">{value:,}</td>'
        )
    return f"<td>{escape(str(value))}</td>"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    weight: str = "normal",
    anchor: str = "middle",
    turned: bool = False,
    colour: str = "#495057",
) -> str:
    turn = f' transform="rotate(-90 {x} {y})"' if turned else ""
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x}" y="{y}" {style}{turn}>{escape(text)}</text>'
