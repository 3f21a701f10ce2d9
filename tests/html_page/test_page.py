"""A page shows text as text, fetches nothing, and is readable in a real browser, wide and narrow, light and dark."""

from __future__ import annotations

import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from markupsafe import Markup

from lightning_mp.html_page.bar_chart import bar_chart
from lightning_mp.html_page.histogram import histogram
from lightning_mp.html_page.line_chart import Line, line_chart
from lightning_mp.html_page.page import page, table

STEAL = (
    "</title></style></script></svg><script>document.title='taken'</script>"
    "<img src='{}' onerror=\"document.title='taken'\">"
)
HOSTILE = [
    STEAL.format("x"),
    "<script>alert(1)</script>",
    "a\") FROM t; COPY (SELECT 1) TO 'x.csv'; SELECT (\"b",
    "../../etc/passwd",
    "=1+1",
    "\u202eabc",
    "x" * 300,
    "na\nme",
    "",
    "{{ 7 * 7 }}{% raw %}",
    "\x00\x1b[31m",
    "\ud800",
    "&lt;",
]


def everything(names: list[str]) -> str:
    """A page that shows each name wherever a page shows a name."""
    lines = [Line(name=name, points=[(0, 1), (1, 2)]) for name in names]
    charts = Markup("").join(
        [
            *(
                line_chart([line], title=line.name, x_label=line.name, y_label=line.name)
                + histogram([0, 1, 3], [5, 2], title=line.name, x_label=line.name, bands=[(line.name, 0, 1)])
                for line in lines
            ),
            bar_chart([(name, 2.0) for name in names], title="bars"),
        ]
    )
    sections = {name: name for name in names} | {"Table": table(names, [names]), "Charts": charts}
    return page(names[0], sections=sections)


def test_text_is_text_wherever_it_stands():
    whole = everything(HOSTILE)
    assert "<script" not in whole
    assert "<img" not in whole
    assert "49" not in re.sub(r"<svg.*?</svg>", "", whole, flags=re.DOTALL)
    assert "\u202e" not in whole
    assert "\x00" not in whole
    assert r"\u202eabc" in whole
    assert r"na\nme" in whole
    assert "(empty)" in whole
    whole.encode()


def test_the_hostile_names_of_real_files_are_text(shared):
    import pyarrow.parquet as pq

    names = pq.read_schema(shared / "cases" / "hostile_columns.parquet").names
    assert len(names) > 5
    whole = everything(names)
    assert "<script" not in whole
    assert "\u202e" not in whole


def test_a_page_fetches_nothing_and_forbids_it():
    chart = line_chart([Line(name="a", points=[(0, 1)])], title="Scale", x_label="step", y_label="scale")
    whole = page("Run", sections={"Scale": chart, "Steps": table(["step", "loss"], [[1, 0.5]])})
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|<script", whole)
    assert "default-src 'none'" in whole


def test_cells_stand_as_their_type_asks():
    html = table(["name", "rows", "auc", "on", "nothing"], [["a<b", 1_234_567, 0.8123456, True, None]])
    assert "<td>a&lt;b</td>" in html
    assert '<td class="number">1,234,567</td><td class="number">0.812346</td><td>True</td><td></td>' in html


def test_plain_content_is_a_paragraph_and_joined_text_is_escaped():
    assert "<p>a &lt;b&gt; c</p>" in page("t", sections={"s": "a <b> c"})
    assert "</div>a &lt;b&gt;" in page("t", sections={"s": table(["x"], []) + "a <b>"})


def test_the_same_input_gives_the_same_text():
    assert everything(HOSTILE) == everything(HOSTILE)


def dump(chromium, tmp_path, address: str, *flags: str) -> str:
    command = [
        str(chromium),
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"),
        *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", *flags, "--dump-dom", address),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_page_and_nothing_hangs_over(chromium, tmp_path, width):
    measure = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join()</script>"
    wide = table([f"column {i}" for i in range(40)], [[i / 7 for i in range(40)]])
    names = [name for name in HOSTILE if name.isprintable()]
    whole = everything(names).replace("</body>", f"<section><h2>Wide</h2>{wide}</section>{measure}</body>")
    whole = re.sub("<meta http-equiv.*", "", whole)  # it would forbid the measuring script
    (tmp_path / "page.html").write_text(whole, encoding="utf-8")
    shown = dump(chromium, tmp_path, (tmp_path / "page.html").as_uri(), f"--window-size={width},900")
    inner, needed = map(int, re.search(r"<title>(\d+),(\d+)</title>", shown).groups())
    assert needed <= inner
    assert inner <= max(width, 500)  # Chromium's own windows are at least 500 wide
    assert all(f"<h2>{name}</h2>" in shown for name in ("Table", "Charts", "Wide"))


@pytest.mark.browser
def test_a_browser_runs_no_script_of_a_name_and_asks_nobody(chromium, tmp_path):
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(whole.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        whole = everything([STEAL.format(f"{address}/stolen"), f"@import url({address}/style)", *HOSTILE])
        shown = dump(chromium, tmp_path, f"{address}/page")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert set(asked) <= {"/page", "/favicon.ico"}
    assert "<title>taken" not in shown
    assert "<title>&lt;/title&gt;" in shown
