"""`lightning-mp audit`: what it prints, writes and ends with, and its page in a real browser."""

from __future__ import annotations

import json
import subprocess
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_mp.cli.main import main
from lightning_mp.data.audit.codes import CODES


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(5)
    path = tmp_path / "log.parquet"
    columns = {
        "spend": rng.lognormal(5, 5, 3000),
        "narrow": rng.uniform(-0.2, 0.2, 3000),
        "click": rng.random(3000) < 0.1,
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_findings_are_printed_the_gravest_first(table, capsys):
    assert main(["audit", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "3,000 rows, 3 columns" in printed
    assert "of 100 for fp16" in printed
    assert printed.index("MP001") < printed.index("MP004")
    assert "transform: log1p_zscore" in printed


def test_a_score_below_the_limit_ends_with_3_and_the_report_is_written_all_the_same(table, tmp_path, capsys):
    html, written = tmp_path / "r.html", tmp_path / "r.json"
    words = ["audit", str(table), "--html", str(html), "--json", str(written), "--fail-under", "80"]
    assert main(words) == 3
    assert "is under the 80 of `--fail-under`" in capsys.readouterr().err
    assert json.loads(written.read_text())["score"] < 80
    assert "<svg" in html.read_text()
    assert main(["audit", str(table), "--fail-under", "10"]) == 0
    capsys.readouterr()


def test_json_on_standard_output_is_nothing_but_json(table, capsys):
    assert main(["audit", str(table), "--json", "-", "--label", "click", "--policy", "bf16"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert printed.err == ""
    assert [column["name"] for column in report["columns"]] == ["spend", "narrow"]
    assert report["policy"] == "bf16"
    assert {found["page"] for found in report["findings"]} <= {f"findings/{code}.md" for code in CODES}
    assert 0.4 < report["columns"][1]["statistics"]["auc"] < 0.6


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--label", "clik"], 2, "did you mean `click`"),
        (["--html", "nowhere/r.html"], 2, "there is no folder `nowhere`"),
        (["--policy", "fp8"], 2, "invalid choice"),
        (["--lable", "x"], 2, "did you mean `--label`"),
        (["--time", "narrow", "--label", "click"], 0, ""),
    ],
)
def test_a_wrong_option_is_named(table, words, code, told, capsys):
    assert main(["audit", str(table), *words]) == code
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there_is_data_refused(capsys):
    assert main(["audit", "log.parqet"]) == 3
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["plain", "bom_crlf", "quoted_newline", "mixed_time", "impossible_values", "ragged",
                                  "leading_zero_ids", "ids_as_floats", "unknown_event",
                                  "daylight_saving", "duplicates_out_of_order", "missing_mapped_column"])  # fmt: skip
def test_small_hostile_files_end_in_a_report(shared, name, capsys):
    assert main(["audit", str(shared / "cases" / f"{name}.csv"), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    if name == "impossible_values":
        assert "MP010" in {found["code"] for found in report["findings"]}
    if name == "ragged":
        assert "rejected" in report["notes"][0]


@pytest.mark.parametrize("name", ["latin1", "utf16", "empty", "header_only", "nul_and_control"])
def test_files_that_hold_no_table_are_refused(shared, name, capsys):
    assert main(["audit", str(shared / "cases" / f"{name}.csv")]) == 3
    assert "hint:" in capsys.readouterr().err


class Parsed(HTMLParser):
    """Tags and texts of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


REAL = {
    "complete_journey/transactions.parquet": ["--time", "transaction_timestamp"],
    "rees46/2019-Oct_head.csv": ["--time", "event_time"],
    "open_bandit/random_all.csv": ["--label", "click", "--time", "timestamp"],
}


@pytest.mark.browser
@pytest.mark.parametrize("name", [*REAL, "hostile"])
def test_the_page_opens_in_a_browser_without_a_script_error(shared, chromium, name, tmp_path, capsys):
    source = shared / "cases" / "hostile_columns.parquet" if name == "hostile" else shared / "data" / name
    page = tmp_path / "page.html"
    assert main(["audit", str(source), *REAL.get(name, []), "--html", str(page)]) == 0
    capsys.readouterr()
    command = [str(chromium), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
               f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]  # fmt: skip
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    shown, written = Parsed(), Parsed()
    shown.feed(done.stdout)
    written.feed(page.read_text())
    assert "script" not in shown.tags
    assert "".join(shown.texts).split() == "".join(written.texts).split()
    assert shown.tags.count("svg") == written.tags.count("svg") > 0


@pytest.mark.parametrize(
    ("mark", "word", "typed"), [(";", "semicolons", ";"), ("\t", "tabs", "\\t"), ("|", "bars", "|")]
)
def test_a_file_cut_at_another_mark_is_refused_with_the_option_that_cuts_it(tmp_path, capsys, mark, word, typed):
    file = tmp_path / "other.csv"
    file.write_text(f"user{mark}price\n1{mark}2\n3{mark}4\n")
    assert main(["audit", str(file)]) == 3
    error = capsys.readouterr().err
    assert f"other.csv` has one column when cut at `,`; its header holds {word}: " in error
    assert f"hint: declare the delimiter: `--delimiter '{typed}'`" in error
    assert main(["audit", str(file), "--delimiter", typed]) == 0
