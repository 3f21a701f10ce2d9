"""A heat map shows each share, darker the larger, and says what it cannot."""

from __future__ import annotations

import re

import pytest

from lightning_mp.errors import ConfigurationError
from lightning_mp.html_page.cards import Card, cards
from lightning_mp.html_page.heat_map import heat_map
from lightning_mp.html_page.notice import notice
from lightning_mp.html_page.prose import prose


def cells(svg: str) -> dict[str, float]:
    found = re.findall(r'fill-opacity="([\d.]+)"><title>(.*?)</title>', svg)
    return {title: float(opacity) for opacity, title in found if title != "legend"}


def test_a_larger_share_is_darker_and_each_cell_says_its_own():
    svg = heat_map([("a", [0.0, 1e-5, 1e-3]), ("b<c", [None, 0.1, 1.0])], ["1", "2", "3"], title="t", x_label="step")
    drawn = cells(svg)
    assert set(drawn) == {"a, 1: 0 %", "a, 2: 0.001 %", "a, 3: 0.1 %", "b&lt;c, 2: 10 %", "b&lt;c, 3: 100 %"}
    assert drawn["a, 1: 0 %"] == drawn["a, 2: 0.001 %"] < drawn["a, 3: 0.1 %"] < drawn["b&lt;c, 2: 10 %"]
    assert drawn["b&lt;c, 3: 100 %"] == pytest.approx(0.95)


@pytest.mark.parametrize(("rows", "columns"), [([], ["1"]), ([("a", [])], []), ([("a", [0.5])], ["1", "2"])])
def test_a_map_without_cells_is_refused(rows, columns):
    with pytest.raises(ConfigurationError, match="heat map `t`"):
        heat_map(rows, columns, title="t", x_label="step")


def test_many_columns_keep_within_the_drawing():
    svg = heat_map([("a" * 50, [0.5] * 300)], [str(i) for i in range(300)], title="t", x_label="step")
    ends = [float(x) + float(w) for x, w in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', svg)]
    assert max(ends) <= 480


def test_names_are_text_in_cards_and_notices():
    hostile = "<script>\u202e`</script>"
    for shown in (
        cards([Card(name=hostile, value=hostile, note=hostile)]),
        notice(hostile, hostile, cure=hostile, source=hostile),
        prose(hostile),
    ):
        assert "<script" not in shown
        assert "\u202e" not in shown


def test_code_in_prose_stands_between_pairs_of_backticks():
    assert prose("a `b` c `d`") == "a <code>b</code> c <code>d</code>"
    assert prose("a `b` c ` d") == "a <code>b</code> c ` d"
    assert prose("") == ""
