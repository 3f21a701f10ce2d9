"""A whole HTML page, and the tables in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from lightning_mp.html_page.visible_text import visible

LIGHT: Final = {
    "page": "#ffffff",
    "text": "#212529",
    "soft": "#5c636a",
    "grid": "#dee2e6",
    "series-0": "#3b5bdb",
    "series-1": "#d9480f",
    "series-2": "#2b8a3e",
    "series-3": "#862e9c",
    "series-4": "#0b7285",
    "error": "#c92a2a",
    "warning": "#c05600",
    "note": "#5c636a",
    "good": "#2b8a3e",
    "panel": "#f5f6f8",
}
"""Colours by the name of their CSS variable; a chart outside of a page takes these."""
_DARK: Final = {
    "page": "#16181b",
    "text": "#e9ecef",
    "soft": "#adb5bd",
    "grid": "#3d4248",
    "series-0": "#91a7ff",
    "series-1": "#ffa94d",
    "series-2": "#8ce99a",
    "series-3": "#e599f7",
    "series-4": "#66d9e8",
    "error": "#ff8787",
    "warning": "#ffa94d",
    "note": "#adb5bd",
    "good": "#8ce99a",
    "panel": "#202327",
}
_TEMPLATE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { {% for name, colour in light.items() %}--{{ name }}: {{ colour }}; {% endfor %} }
@media (prefers-color-scheme: dark) {
  :root { {% for name, colour in dark.items() %}--{{ name }}: {{ colour }}; {% endfor %} }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page) }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
code { font: .92em ui-monospace, monospace; background: var(--panel); border-radius: .2rem; padding: 0 .2em }
div.wide { overflow-x: auto } svg { display: block; width: 100%; max-width: 40rem; height: auto; margin: 1rem 0 }
table { border-collapse: collapse }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--grid); text-align: left; vertical-align: top }
td { min-width: 6rem; max-width: 30rem } th { white-space: nowrap }
td.number { min-width: 0; white-space: nowrap; text-align: right; font-variant-numeric: tabular-nums }
dl.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.4rem, 1fr)); gap: .75rem; margin: 1rem 0 }
dl.cards div { background: var(--panel); border-radius: .5rem; padding: .6rem .8rem }
dl.cards dt { color: var(--soft); font-size: .8rem } dl.cards dd { margin: 0; font-size: 1.15rem; font-weight: 600 }
dl.cards dd small { display: block; color: var(--soft); font-size: .8rem; font-weight: 400 }
dl.cards .error dd { color: var(--error) } dl.cards .warning dd { color: var(--warning) }
dl.cards .good dd { color: var(--good) }
div.notice { border-left: .3rem solid var(--note); background: var(--panel); border-radius: .25rem }
div.notice { margin: .6rem 0; padding: .5rem .9rem } div.notice p { margin: .25rem 0 }
div.notice.error { border-color: var(--error) } div.notice.warning { border-color: var(--warning) }
div.notice strong { margin-right: .5rem } div.notice small { color: var(--soft) }
div.beside { display: flex; flex-wrap: wrap; gap: 0 1.5rem } div.beside > * { flex: 1 1 24rem; min-width: 0 }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for heading, content in sections.items() %}
<section><h2>{{ heading }}</h2>
{% if content.__html__ is defined %}{{ content }}{% else %}<p>{{ content }}</p>{% endif %}

</section>
{% endfor %}
</body>
</html>
"""
_TABLE: Final = """<div class="wide"><table>
<thead><tr>{% for name in header %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>
{%- for cell in row -%}
<td{% if cell is number and cell is not boolean %} class="number"{% endif %}>{{ cell }}</td>
{%- endfor -%}
</tr>
{% endfor %}
</tbody>
</table></div>"""


def page(title: str, *, sections: Mapping[str, str]) -> str:
    r"""A whole HTML page, light or dark as its reader's system is.

    Whatever is not `Markup` is shown as text: escaped, with control characters and direction marks written out
    (`\u202e`), and nothing as `(empty)`. The page forbids scripts and requests to the browser besides.

    Args:
        title: Plain text.
        sections: Heading to content: `Markup`, which `table` and the charts give (`+` joins them, and escapes a
            plain text that is joined), or plain text, which becomes a paragraph.

    Example:
        >>> "<h1>Scale &amp; skips</h1>" in page("Scale & skips", sections={"Steps": table(["step"], [[1]])})
        True
    """
    template = _environment().from_string(_TEMPLATE)
    return str(template.render(title=title, sections=sections, light=LIGHT, dark=_DARK))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """An HTML table; numbers stand at the right.

    Args:
        header: Names of the columns.
        rows: Cells, as many a row as `header` has names. `None` leaves a cell empty.

    Returns:
        The table; where it is wider than the screen it scrolls by itself.
    """
    return Markup(_environment().from_string(_TABLE).render(header=header, rows=rows))  # noqa: S704 - autoescaped


def _environment() -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown)


def _shown(value: object) -> object:
    """How jinja2 shows what stands in `{{ }}`, before it escapes it."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else visible(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    return value
