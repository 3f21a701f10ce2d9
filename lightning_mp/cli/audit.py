"""`lightning-mp audit PATH`: what float16 will do to every column of a table."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_mp.cli.argument_parser import CommandParser
from lightning_mp.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_mp.data.audit.report import Report

_SHOWN = 40
_COLOURS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def main(argv: Sequence[str]) -> int:
    """Audit a table, print its findings, the gravest first, and write the report where asked to.

    Args:
        argv: Arguments after `audit`.

    Returns:
        0; 3 when `--fail-under` is given and the score is below it.

    Raises:
        LightningMPError: The table or an option is refused, or a report cannot be written.
    """
    parser = CommandParser("audit", "Say what float16 will do to every column of a table.")
    parser.add_argument("path", metavar="PATH", help="a Parquet, CSV, JSON lines or Arrow IPC file, or a feature store")
    parser.add_argument("--label", metavar="COLUMN", help="judge each column by how well it alone tells this one")
    parser.add_argument("--label-at-least", type=float, metavar="N", help="the label is 1 from N on; N is above 0")
    parser.add_argument("--time", metavar="COLUMN", help="compare the first and the last quarter by this time")
    parser.add_argument(
        "--policy", choices=("fp16", "bf16"), default="fp16", help="what the run computes in (default: fp16)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; - prints it and nothing else")
    parser.add_argument("--fail-under", type=float, metavar="N", help="end with 3 when the score is below N")
    parser.add_argument("--delimiter", default=",", help="of a CSV file (default: a comma)")
    parser.add_argument("--decimal", default=".", help="decimal mark of a CSV file (default: a point)")
    parser.add_argument("--encoding", default="utf-8", help="of a CSV or JSON lines file (default: utf-8)")
    options = parser.parse_args(argv)
    for name in ("html", "json"):
        target = getattr(options, name)
        if target not in (None, "-") and not Path(target).resolve().parent.is_dir():
            raise ConfigurationError(
                f"`--{name} {target}`: there is no folder `{Path(target).parent}`", "make it first"
            )

    from lightning_mp.data.audit.audit import audit
    from lightning_mp.data.csv_dialect import CsvDialect

    dialect = CsvDialect(delimiter=options.delimiter, decimal=options.decimal, encoding=options.encoding)
    with _Progress(quiet=options.json == "-") as progress:
        report = audit(
            options.path, options.label, options.time, options.policy, label_at_least=options.label_at_least,
            csv=dialect, progress=progress.show,
        )  # fmt: skip
    if options.html is not None:
        _write(options.html, report.to_html())
    if options.json == "-":
        print(report.to_json())
    else:
        if options.json is not None:
            _write(Path(options.json), report.to_json())
        _show(report)
    if options.fail_under is None or report.score is None or report.score >= options.fail_under:
        return 0
    print(f"score {report.score:.1f} is under the {options.fail_under:g} of `--fail-under`", file=sys.stderr)
    return 3


class _Progress:
    """A bar on a terminal's standard error; nothing elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("auditing"), BarColumn(), TimeElapsedColumn(), console=console, transient=True,
            disable=quiet or not console.is_terminal,
        )  # fmt: skip

    def __enter__(self) -> _Progress:
        self._bar.start()
        self._task = self._bar.add_task("", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, share: float) -> None:
        self._bar.update(self._task, completed=share)


def _write(path: Path, text: str) -> None:
    from lightning_mp.artifacts import replacing

    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def _show(report: Report) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lightning_mp.html_page.visible_text import visible

    width = None if Console().is_terminal else int(os.environ.get("COLUMNS", "140"))
    console = Console(width=width, highlight=False)
    for note in report.notes:
        console.print(Text(visible(note)))
    score, after = ("none" if number is None else f"{number:.0f}" for number in (report.score, report.advised_score))
    rows, columns = f"{report.rows:,} rows", f"{len(report.columns):,} columns"
    console.print(Text(f"{visible(report.source)}: {rows}, {columns}, {report.seconds:.1f} s"))
    console.print(Text(f"score {score} of 100 for {report.policy}, {after} after the advice", style="bold"))
    if not report.findings:
        console.print(Text("no findings"))
        return
    table = Table(box=box.SIMPLE, expand=False)
    for name in ("severity", "code", "column", "found", "cure"):
        table.add_column(name, overflow="fold")
    for found in report.findings[:_SHOWN]:
        column = visible(found.column)
        table.add_row(
            Text(found.severity, style=_COLOURS[found.severity]),
            found.code,
            Text(column if len(column) <= 40 else f"{column[:37]}..."),
            Text(visible(found.problem)),
            Text(visible(found.cure)),
        )
    console.print(table)
    if len(report.findings) > _SHOWN:
        console.print(Text(f"and {len(report.findings) - _SHOWN:,} more: `--json FILE` or `--html FILE` has them all"))
