"""Pages and charts: escaped, self-contained, readable in a real browser at two widths."""

from __future__ import annotations

import math
import re
import subprocess
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_mp.errors import ConfigurationError
from lightning_mp.html_page import Line, line_chart, page, table

HOSTILE = "</title><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">&'"
SVG = "{http://www.w3.org/2000/svg}"


def chart(**changed) -> str:
    scale = [(step, 65536.0 / 2 ** (step // 10)) for step in range(60)]
    given_arguments = {"title": "Loss scale", "x_label": "step", "y_label": "scale", "log2_y": True, **changed}
    return line_chart([Line(name="scale", points=scale, marks=[(20, 65536.0 / 4)])], **given_arguments)


def test_text_is_escaped_wherever_it_stands():
    lines = [Line(name=HOSTILE, points=[(0, 1), (1, 2)])]
    whole = page(
        HOSTILE,
        sections={
            HOSTILE: table([HOSTILE], [[HOSTILE]]) + line_chart(lines, title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE)
        },
    )
    assert "<script" not in whole
    assert "<img" not in whole
    assert whole.count("&lt;script&gt;") == 10


def test_a_page_fetches_nothing():
    whole = page("Run", sections={"Scale": chart(), "Steps": table(["step", "loss"], [[1, 0.5]])})
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|<script", whole)


def test_cells_stand_as_their_type_asks():
    html = table(["name", "rows", "auc", "on", "nothing"], [["a<b", 1_234_567, 0.8123456, True, None]])
    assert "<td>a&lt;b</td>" in html
    assert '<td class="number">1,234,567</td><td class="number">0.812346</td><td>True</td><td></td>' in html


def points_of(svg: str) -> list[tuple[float, float]]:
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    path = next(node.get("d") for node in paths if node.get("fill") == "none")
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


@given(
    st.lists(
        st.tuples(st.floats(-1e9, 1e9, allow_subnormal=False), st.floats(-1e9, 1e9, allow_subnormal=False)),
        min_size=1,
        max_size=30,
    )
)
def test_every_point_lies_inside_the_frame_and_higher_values_higher(points):
    svg = line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y", width=700, height=300)
    drawn = points_of(svg)
    assert len(drawn) == len(points)
    assert all(78 <= x <= 684 and 40 <= y <= 252 for x, y in drawn)
    by_value = sorted(zip([y for _, y in points], [-y for _, y in drawn], strict=True))
    assert [y for _, y in by_value] == sorted(y for _, y in by_value)


def test_a_value_that_is_not_finite_breaks_the_line():
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 2.0), (5, 0.0)]
    svg = line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y")
    assert len(points_of(svg)) == 4
    assert svg.count("M") == 2 + svg.count('stroke="#dee2e6"')
    with_log = line_chart([Line(name="a", points=points)], title="t", x_label="x", y_label="y", log2_y=True)
    assert len(points_of(with_log)) == 3


def test_powers_of_two_are_named_as_such():
    labels = [node.text for node in ElementTree.fromstring(chart()).iter(f"{SVG}text")]
    assert {"65,536", "32,768", "2,048"} <= set(labels)


def test_the_same_input_gives_the_same_text():
    assert chart() == chart()


def test_a_chart_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="chart `Loss` has no finite point"):
        line_chart([Line(name="a", points=[(0, math.nan)])], title="Loss", x_label="x", y_label="y")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_page_and_nothing_hangs_over(chromium, tmp_path, width):
    measure = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join()</script>"
    wide = table([f"column {i}" for i in range(40)], [[i / 7 for i in range(40)]])
    whole = page("Run <1>", sections={HOSTILE: table([HOSTILE], [[HOSTILE]]), "Scale": chart(), "Wide": wide})
    (tmp_path / "page.html").write_text(whole.replace("</body>", measure + "</body>"), encoding="utf-8")
    command = [
        chromium,
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"),
        (tmp_path / "page.html").as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    shown, needed = map(int, re.search(r"<title>(\d+),(\d+)</title>", done.stdout).groups())
    assert needed <= shown
    assert shown <= max(width, 500)  # Chromium's own windows are at least 500 wide
    assert all(f"<h2>{name}</h2>" in done.stdout for name in ("Scale", "Wide"))
