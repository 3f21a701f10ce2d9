"""Axes: two number lines, their grid, and where a point stands between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_mp.html_page.drawing import Drawing, colour


class Axes:
    """Draws both axes into a drawing.

    Args:
        drawing: What to draw into.
        points: Finite (x, y) pairs that must find room.
        x_label: Name and unit of the horizontal axis.
        y_label: Name and unit of the vertical axis.
        legend: Lines of text to leave room for under the title.
        log2_y: The points' y are logarithms to base 2; ticks name their powers.
    """

    def __init__(
        self,
        drawing: Drawing,
        points: Sequence[tuple[float, float]],
        *,
        x_label: str,
        y_label: str,
        legend: int,
        log2_y: bool = False,
    ) -> None:
        self.left, self.right = 70, drawing.width - 26  # half of the last number stands beyond it
        self.top, self.bottom = 34 + 16 * legend, drawing.height - 48
        x_ticks = _ticks(min(p[0] for p in points), max(p[0] for p in points))
        y_ticks = _ticks(min(p[1] for p in points), max(p[1] for p in points), whole=log2_y)
        self._x, self._y = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])
        for tick in y_ticks:
            y = self.at(x_ticks[0], tick)[1]
            drawing.add('<path d="M{} {}H{}" stroke="{}"/>', self.left, y, self.right, colour("grid"))
            drawing.text(self.left - 8, y + 4, _power(tick) if log2_y else f"{tick:,g}", anchor="end")
        for tick in x_ticks:
            drawing.text(self.at(tick, y_ticks[0])[0], self.bottom + 18, f"{tick:,g}")
        drawing.text((self.left + self.right) / 2, drawing.height - 8, x_label)
        drawing.text(16, (self.top + self.bottom) / 2, y_label, turned=True)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point stands in the drawing."""
        across = self.left + (x - self._x[0]) / (self._x[1] - self._x[0]) * (self.right - self.left)
        up = (y - self._y[0]) / (self._y[1] - self._y[0]) * (self.bottom - self.top)
        return round(across, 1), round(self.bottom - up, 1)


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


def _power(tick: float) -> str:
    """A power of two, written out where that is short enough to stand beside the axis."""
    written = f"{2.0**tick:,.10g}"
    return written if len(written) <= 7 else f"2^{tick:g}"
