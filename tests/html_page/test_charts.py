"""Charts show every number at its place, and say so where there is none."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.errors import ConfigurationError
from lightning_mp.html_page.bar_chart import bar_chart
from lightning_mp.html_page.histogram import histogram
from lightning_mp.html_page.line_chart import Line, line_chart

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = st.floats(-1e9, 1e9, allow_subnormal=False)


def scale_chart() -> str:
    scale = [(step, 65536.0 / 2 ** (step // 10)) for step in range(60)]
    lines = [Line(name="scale", points=scale, marks=[(20, 65536.0 / 4)])]
    return line_chart(lines, title="Loss scale", x_label="step", y_label="scale", log2_y=True)


def points_of(svg: str) -> list[tuple[float, float]]:
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    path = next(node.get("d") for node in paths if node.get("fill") == "none")
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def bars_of(svg: str) -> list[dict[str, str]]:
    """Attributes of the rectangles that carry a title, the title's text among them."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [{**node.attrib, "title": node[0].text} for node in found if len(node)]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_every_point_lies_inside_the_frame_and_higher_values_higher(points):
    svg = line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y", width=700, height=300)
    drawn = points_of(svg)
    assert len(drawn) == len(points)
    assert all(70 <= x <= 684 and 50 <= y <= 252 for x, y in drawn)
    by_value = sorted(zip([y for _, y in points], [-y for _, y in drawn], strict=True))
    assert [y for _, y in by_value] == sorted(y for _, y in by_value)


def test_a_value_that_is_not_finite_breaks_the_line():
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 2.0), (5, 0.0)]
    svg = line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y")
    assert len(points_of(svg)) == 4
    assert svg.count("M") == 2 + svg.count('stroke="var(--grid')
    with_log = line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y", log2_y=True)
    assert len(points_of(with_log)) == 3


def test_powers_of_two_are_named_as_such():
    labels = [node.text for node in ElementTree.fromstring(scale_chart()).iter(f"{SVG}text")]
    assert {"65,536", "32,768", "2,048"} <= set(labels)


def test_a_chart_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="chart `Loss` has no finite point"):
        line_chart([Line(name="a", points=[(0, math.nan)])], title="Loss", x_label="x", y_label="y")


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.floats(-100, 100), st.floats(0.01, 100))
def test_a_histogram_has_one_bar_a_count_in_proportion(counts, start, step):
    edges = [start + step * index for index in range(len(counts) + 1)]
    svg = histogram(edges, counts, title="t", x_label="x", width=600, height=300)
    bars = bars_of(svg)
    assert [bar["title"].rpartition(": ")[2] for bar in bars] == [f"{count:,g}" for count in counts]
    heights = [float(bar["height"]) for bar in bars]
    for (one, count), (other, larger) in zip(
        zip(heights, counts, strict=True), [(max(heights), max(counts))] * 99, strict=False
    ):
        assert abs(one * larger - other * count) <= 0.2 * max(larger, 1)
    assert all(70 <= float(bar["x"]) <= 584 for bar in bars)
    assert all(float(b["y"]) + float(b["height"]) == pytest.approx(252, abs=0.2) for b in bars)


def test_a_band_is_drawn_behind_the_bars_where_it_belongs():
    svg = histogram([-30, 0, 20], [5, 7], title="t", x_label="log2 |x|", bands=[("float16", -14, 16)])
    band, left, right = bars_of(svg)
    assert band["title"] == "float16"
    assert float(left["x"]) < float(band["x"]) < float(right["x"])
    assert float(band["x"]) + float(band["width"]) < float(right["x"]) + float(right["width"])


@pytest.mark.parametrize(
    ("edges", "counts"),
    [([0, 1], [1, 2]), ([], []), ([0, 0, 1], [1, 1]), ([0, 1, math.inf], [1, 1]), ([0, 1], [math.nan])],
)
def test_a_histogram_that_makes_no_sense_is_refused(edges, counts):
    with pytest.raises(ConfigurationError, match="histogram `sizes`"):
        histogram(edges, counts, title="sizes", x_label="x")


def test_bars_stand_on_both_sides_of_zero_and_undefined_is_written():
    svg = bar_chart([("up", 2.0), ("down", -1.0), ("none", math.nan), ("zero", 0.0)], title="t")
    up, down, none, zero = bars_of(svg)
    assert float(up["width"]) == pytest.approx(2 * float(down["width"]), abs=0.2)
    assert float(down["x"]) + float(down["width"]) == pytest.approx(float(up["x"]), abs=0.2)
    assert float(none["width"]) == float(zero["width"]) == 0
    assert none["title"] == "none: nan"
    bar_chart([], title="nothing")


def test_the_same_input_gives_the_same_text():
    assert scale_chart() == scale_chart()


def test_ticks_of_a_long_logarithmic_axis_are_powers_that_fit_beside_it():
    points = [(step, 2.0 ** (16 - step)) for step in range(160)]
    svg = str(line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y", log2_y=True))
    ticks = re.findall(r'text-anchor="end"[^>]*>([^<]+)<', svg)
    assert "1" in ticks
    assert any(tick.startswith("2^-") for tick in ticks)
    assert max(map(len, ticks)) <= 7
